"""The page of an evaluation in a real browser, light and dark, and its recording in the page of a server."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envtorch.evaluation import EvalReport, report_page
from envtorch.rollout import Ending, Task, Trajectory, TurnRecord
from envtorch.server import create_app
from tests.support import PATIENCE_S, running
from tests.web.conftest import Arrive
from tests.web.environments import Walker

pytestmark = pytest.mark.browser

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def page() -> str:
    samples = []
    for number in range(6):
        task = Task({"seed": number}, id=f"task {number}")
        for member in range(4):
            said = ({"role": "assistant", "content": f"{ATTACK} {number}"},)
            turns = (TurnRecord(float(member < number), 0.5, 0.1, 900, 40),)
            samples.append(Trajectory(task, member, Ending.DONE, said, turns=turns))
    tasks = [sample.task for sample in samples if sample.member == 0]
    return report_page(EvalReport.of({"model": "tiny", "target": "game", "samples": 4}, tasks, samples))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_worst_case_is_one_click_away_and_nothing_it_says_runs(
    scheme: Any, chromium: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page())
    dialogs: list[str] = []

    def note(dialog: Any) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    shown = chromium.new_page(viewport={"width": 1100, "height": 1000}, color_scheme=scheme)
    shown.on("dialog", note)
    shown.goto(file.as_uri())
    pictures = Path(pytestconfig.getoption("--screenshots"))
    pictures.mkdir(parents=True, exist_ok=True)
    shown.screenshot(path=str(pictures / f"evaluation-{scheme}.png"))
    shown.get_by_role("link", name="task 0").click()
    sample = shown.locator("details.task[open] details > summary").first
    sample.click()
    assert ATTACK in shown.locator("details.task[open] pre").first.inner_text()
    shown.screenshot(path=str(pictures / f"evaluation-{scheme}-open.png"))
    shown.close()
    assert not dialogs


MODEL = """
def walk(messages):
    return '{"direction": "right", "by": 2}'
"""


def test_the_recording_of_an_evaluation_is_opened_in_the_page(arrive: Arrive, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "envtorch.cli", "eval", "tests.web.environments:Walker", "--record"]
    options = ["--tasks", "2", "--samples", "2", "--model", f"scripted:{tmp_path / 'model.py'}:walk"]
    done = subprocess.run(
        [*command, *options, "--output", str(tmp_path / "played")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    (recording,) = (tmp_path / "played" / "recording").glob("*.jsonl")
    assert str(recording.parent) in done.stdout, "the command says where the recording is"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENABLE_WEB_INTERFACE", "true")
        app = create_app(Walker, env_name="walk_env", max_concurrent_envs=4)
        with running(app) as server, arrive() as visitor:
            visitor.open(server.url)
            visitor.go_to("Recording")
            visitor.tab.locator("input[type=file]").first.set_input_files(recording)
            visitor.sees("#et-recorded .et-pill", "step 0")
            visitor.tab.locator("#et-episode input").click()
            visitor.tab.get_by_role("option", name="2 steps, reward 1.2").first.click()
            visitor.sees("#et-recorded", "4")
            for step in (1, 2):
                visitor.press("On ▶")
                visitor.sees("#et-recorded .et-pill", f"step {step}")
            visitor.sees("#et-recorded", "The episode is over")
            visitor.photograph("evaluation-recording")
