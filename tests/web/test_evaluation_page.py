"""The page of an evaluation in a real browser, light and dark."""

from pathlib import Path
from typing import Any

import pytest

from envtorch.evaluation import EvalReport, report_page
from envtorch.rollout import Ending, Task, Trajectory, TurnRecord

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
