"""The examples, run as a reader runs them."""

import subprocess
import sys
from pathlib import Path

__all__ = ["run_example"]

ROOT = Path(__file__).parents[2]
LONGEST_S = 1200


def run_example(name: str) -> str:
    """What `python examples/NAME.py` prints."""
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
