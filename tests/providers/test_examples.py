"""The example runs as its docstring says."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_echo_env.py"


@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["docker"], marks=[pytest.mark.docker, pytest.mark.timeout(600)])]
)
def test_the_echo_example_runs(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3 steps, return 5.7" in done.stdout
