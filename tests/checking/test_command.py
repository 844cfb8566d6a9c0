"""`envtorch check`, as a person runs it."""

import json
import subprocess
import sys
from pathlib import Path

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
