"""Checks an environment in a child process, and reports the end of that process as a finding."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from envtorch.testing import Report

__all__ = ["check_in_child"]

QUIET_S = 3.0
"""How long a check may take before it is named on standard error."""


def check_in_child(target: str, options: Sequence[str]) -> "int | Report":
    """The exit code of `envtorch check` in a child process, which has printed its report.

    A report where the environment ended the process in the middle of a check: nothing was printed then.
    """
    with tempfile.TemporaryDirectory(prefix="envtorch-check-") as directory:
        progress = Path(directory) / "progress"
        command = [sys.executable, "-m", "envtorch.cli", "check", target, *options]
        command += ["--in-process", "--progress-file", str(progress)]
        with subprocess.Popen(command) as child:  # noqa: S603, this command again
            try:
                code = _wait(child, target, progress)
            except BaseException:
                child.kill()
                raise
        running = progress.read_text() if progress.exists() else ""
    return _ended(target, running, code) if running else code


def _wait(child: "subprocess.Popen[bytes]", target: str, progress: Path) -> int:
    """The exit code of the child. A check that takes long is named meanwhile, so that nobody has to guess."""
    started = time.monotonic()
    told = None
    while True:
        try:
            return child.wait(timeout=QUIET_S)
        except subprocess.TimeoutExpired:
            running = progress.read_text() if progress.exists() else ""
            if running != told:
                what = f"checking {running}" if running else f"loading {target}"
                typer.echo(f"{what} ({time.monotonic() - started:.0f} s so far)", err=True)
                told = running


def _ended(target: str, check: str, code: int) -> "Report":
    from envtorch.testing import Finding, Report

    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        advice = "a library in machine code may have crashed: PYTHONFAULTHANDLER=1 shows the line it was in"
    else:
        how = f"ended with exit code {code}"
        advice = "raise an exception instead of calling os._exit: a server would end with all its sessions"
    return Report(target, (check,), (Finding(check, f"the environment's process {how}", advice),))
