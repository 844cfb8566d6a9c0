"""`envtorch check`, as a person runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.cli import check_child
from tests.support import PATIENCE_S

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]
ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*ENVTORCH, "check", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT
    )


def test_a_sound_environment() -> None:
    done = run("echo_env")
    assert done.returncode == 0, done.stderr
    assert "0 errors, 0 warnings" in done.stdout


def test_a_faulty_one_with_actions_of_its_own(tmp_path: Path) -> None:
    actions = tmp_path / "actions.json"
    actions.write_text(json.dumps([{"by": 1}]))
    done = run("tests.checking.faults:CountsOn", "--actions", str(actions))
    assert done.returncode == 1, done.stderr
    assert "ERROR episodes" in done.stdout
    assert "→ make `reset` start from nothing" in done.stdout


def test_what_is_not_there() -> None:
    done = run("nothing_of_the_kind")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


RAISES_IN_STEP = """
from envtorch import Action, Environment, Observation, State

class Move(Action):
    by: int = 1

class Seen(Observation):
    at: int = 0

class Game(Environment[Move, Seen, State]):
    def reset(self, seed: int | None = None) -> Seen:
        return Seen()

    def step(self, action: Move) -> Seen:
        return self._half(action.by)

    def _half(self, by: int) -> Seen:
        return Seen(at=1 // (by - by))

    @property
    def state(self) -> State:
        return State()
"""


def test_the_authors_traceback_is_shown_and_nothing_is_ok_that_did_not_run(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(RAISES_IN_STEP)
    command = [*ENVTORCH, "check", "halves.py:Game"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "ZeroDivisionError" in done.stdout
    assert "(halves.py, line 18)" in " ".join(done.stdout.split())
    frames = [line.split('"')[1] for line in done.stdout.splitlines() if line.strip().startswith("File ")]
    assert [Path(frame).name for frame in frames] == ["halves.py", "halves.py"]
    assert "\nOK " not in done.stdout
    (unrun,) = [line for line in done.stdout.splitlines() if line.startswith("NOT RUN")]
    assert "determinism" in unrun
    assert unrun.endswith(": the environment does not run")


def test_a_check_that_has_nothing_to_examine_is_not_ok() -> None:
    done = run("tests.cli.environments:OneMan", "--json")
    told = json.loads(done.stdout)
    assert told["not_run"]["threads"] == "SUPPORTS_CONCURRENT_SESSIONS is False"
    assert told["not_run"]["together"] == "there is no step_many"
    assert not {"threads", "together"} & set(told["checks"])


ENDS_ITS_PROCESS = RAISES_IN_STEP.replace("return self._half(action.by)", "{how}")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("import os; os._exit(0)", "the environment's process ended with exit code 0"),
        ("import os; os._exit(7)", "the environment's process ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 11)", "the environment's process was killed by SIGSEGV"),
        ("raise SystemExit(0)", "the environment raised SystemExit(0)"),
    ],
)
def test_an_environment_that_ends_its_process_is_reported(how: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS_ITS_PROCESS.format(how=how))
    command = [*ENVTORCH, "check", "ends.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "ERROR contract" in done.stdout
    assert told in " ".join(done.stdout.split())
    assert "→" in done.stdout


def test_an_environment_that_ends_its_process_is_reported_to_programs(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS_ITS_PROCESS.format(how="import os; os._exit(0)"))
    command = [*ENVTORCH, "check", "ends.py", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert not told["ok"]
    assert [finding["check"] for finding in told["findings"]] == ["contract"]


PRINTS = RAISES_IN_STEP.replace(
    "return self._half(action.by)",
    "print('by hand'); import os; os.system('echo by a child'); return Seen(at=action.by)",
)


@pytest.mark.parametrize("options", [[], ["--in-process"]])
def test_what_an_environment_prints_is_not_in_the_json(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(f"print('on import')\n{PRINTS}")
    command = [*ENVTORCH, "check", "prints.py", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert json.loads(done.stdout)["environment"] == "Game", done.stderr
    for printed in ("on import", "by hand", "by a child"):
        assert printed in done.stderr


def test_actions_in_the_command_line_are_told_to_be_a_file() -> None:
    done = run("echo_env", "--actions", '[{"message": "hello"}]')
    assert done.returncode == 2
    assert "--actions is the path of a JSON file" in done.stderr
    assert "Next: write the list of actions to a file" in done.stderr


SLOW = """
import time

from tests.checking.faults import Sound

time.sleep(10 * SECONDS)


class Slow(Sound):
    def reset(self, seed=None, episode_id=None):
        time.sleep(SECONDS)
        return super().reset(seed, episode_id)
"""


def test_a_check_that_takes_long_is_named_on_standard_error_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_child, "QUIET_S", 0.05)
    (tmp_path / "slow.py").write_text(SLOW.replace("SECONDS", "0.2"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = check_child.check_in_child(str(tmp_path / "slow.py:Slow"), ["--json"], timeout_s=PATIENCE_S)
    told = capfd.readouterr()
    assert code == 0, told
    assert json.loads(told.out)["ok"]
    assert f"loading {tmp_path / 'slow.py:Slow'} (" in told.err
    assert "checking contract (" in told.err
    assert told.err.count("checking contract (") == 1, "each check is named once"
