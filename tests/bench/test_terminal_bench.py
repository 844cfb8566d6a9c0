"""The benchmark of terminal sessions runs to its end."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.roots import require_host_root
from tests.support import PATIENCE_S


@pytest.mark.terminal
def test_the_benchmark_measures_sessions_forks_grades_and_memory() -> None:
    require_host_root()
    command = [sys.executable, "-m", "bench.terminal", "--repeats", "1", "--sessions", "2", "--only", "ours"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    told = (
        "session ready",
        "command: a program",
        "fork, 500 MB",
        "grade:",
        "memory of an idle session",
        "aims:",
    )
    assert [what for what in told if what not in done.stdout] == []
