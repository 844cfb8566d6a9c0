"""The examples of evaluation and of tree search run, and print what they promise."""

import subprocess
import sys
from pathlib import Path

from tests.support import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_of_an_evaluation_reports(tmp_path: Path) -> None:
    printed = run("evaluate.py", str(tmp_path / "results"))
    assert "pass@8" in printed
    assert "95 % interval" in printed
    assert (tmp_path / "results" / "report.html").is_file()


def test_a_tree_searched_by_fork_is_the_one_searched_by_replay_with_fewer_steps() -> None:
    forked, replayed = run("tree_search.py").splitlines()
    found = [line.split(":")[1].split(",")[0] for line in (forked, replayed)]
    steps = [int(line.split(", ")[1].split()[0]) for line in (forked, replayed)]
    assert found[0] == found[1]
    assert steps[0] < steps[1] / 2
