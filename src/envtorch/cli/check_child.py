"""Checks an environment in a child process, and reports the end of that process as a finding."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envtorch.testing import Report

__all__ = ["check_in_child"]


def check_in_child(target: str, options: Sequence[str]) -> "int | Report":
    """The exit code of `envtorch check` in a child process, which has printed its report.

    A report where the environment ended the process in the middle of a check: nothing was printed then.
    """
    with tempfile.TemporaryDirectory(prefix="envtorch-check-") as directory:
        progress = Path(directory) / "progress"
        command = [sys.executable, "-m", "envtorch.cli", "check", target, *options]
        command += ["--in-process", "--progress-file", str(progress)]
        code = subprocess.run(command).returncode  # noqa: S603, this command again
        running = progress.read_text() if progress.exists() else ""
    return _ended(target, running, code) if running else code


def _ended(target: str, check: str, code: int) -> "Report":
    from envtorch.testing import Finding, Report

    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        advice = "a library in machine code may have crashed: PYTHONFAULTHANDLER=1 shows the line it was in"
    else:
        how = f"ended with exit code {code}"
        advice = "raise an exception instead of calling os._exit: a server would end with all its sessions"
    return Report(target, (check,), (Finding(check, f"the environment's process {how}", advice),))
