"""Checks an environment in a child process, and reports that it ended or hangs as a finding."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envtorch.cli.hang_report import ask_where

if TYPE_CHECKING:
    from envtorch.testing import Report

__all__ = ["LOADING", "check_in_child"]

LOADING = "loading"
"""What comes before the first check."""

QUIET_S = 3.0
"""How long a check may take before it is named on standard error."""
POLL_S = 0.05
ANSWER_S = 5.0
"""How long a process that hangs may take to tell where: one that does not run Python code cannot."""
GRACE_S = 0.5
"""How long it has to end by itself, before it and all that it started are killed."""


class Hung(Exception):
    """A check, by its name, did not end in time."""


def check_in_child(target: str, options: Sequence[str], *, timeout_s: float) -> "int | Report":
    """The exit code of `envtorch check` in a child process, which has printed its report.

    A report where the environment ended the process in the middle of a check, or a check did not end within
    `timeout_s`: nothing was printed then.
    """
    from envtorch.providers.child import under_warden

    with tempfile.TemporaryDirectory(prefix="envtorch-check-") as name:
        directory = Path(name)
        command = [sys.executable, "-m", "envtorch.cli", "check", target, *options]
        command += ["--in-process", "--progress-in", name]
        with subprocess.Popen(under_warden(command, grace_s=GRACE_S)) as child:  # noqa: S603, this command again
            try:
                code = _wait(child, target, directory, timeout_s)
            except Hung as hung:
                where = _where(directory)
                child.terminate()
                return _hangs(target, str(hung), timeout_s, where)
            except BaseException:
                child.terminate()
                raise
        running = _running(directory)
    return _ended(target, running, code) if running not in ("", LOADING) else code


def _wait(child: "subprocess.Popen[bytes]", target: str, directory: Path, timeout_s: float) -> int:
    """The exit code of the child. A check that takes long is named meanwhile, so that nobody has to guess."""
    running, since, told = "", time.monotonic(), False
    while True:
        try:
            return child.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if (current := _running(directory)) != running:
            running, since, told = current, now, False
        if running and now - since >= timeout_s:
            raise Hung(running)
        if running and not told and now - since >= QUIET_S:
            what = f"checking {running}" if running != LOADING else f"loading {target}"
            typer.echo(f"{what} ({now - since:.0f} s so far; --timeout-s is {timeout_s:g})", err=True)
            told = True


def _running(directory: Path) -> str:
    """The check that runs; empty while EnvTorch itself is loaded, and after the last check."""
    progress = directory / "check"
    return progress.read_text() if progress.exists() else ""


def _where(directory: Path) -> dict[str, str]:
    """What the process that hangs tells of where: its method, line and frames. Empty if it tells nothing."""
    ask_where(directory)
    answer = directory / "hangs"
    deadline = time.monotonic() + ANSWER_S
    while not answer.exists() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return dict(json.loads(answer.read_text())) if answer.exists() else {}


def _hangs(target: str, check: str, timeout_s: float, where: dict[str, str]) -> "Report":
    from envtorch.testing import Finding, Report

    if where:
        what = "the module" if where["method"] == "<module>" else where["method"]
        message = f"{what} hangs: after {timeout_s:g} s it is in {where['line']}"
    else:
        message = f"the environment hangs: it was stopped after {timeout_s:g} s"
    advice = (
        "give what is waited for there a time limit of its own; if it is only slow, allow more: --timeout-s"
    )
    return Report(target, (check,), (Finding(check, message, advice, traceback=where.get("frames", "")),))


def _ended(target: str, check: str, code: int) -> "Report":
    from envtorch.testing import Finding, Report

    if code - 128 in set(signal.Signals):
        how = f"was killed by {signal.Signals(code - 128).name}"
        advice = "a library in machine code may have crashed: PYTHONFAULTHANDLER=1 shows the line it was in"
    else:
        how = f"ended with exit code {code}"
        advice = "raise an exception instead of calling os._exit: a server would end with all its sessions"
    return Report(target, (check,), (Finding(check, f"the environment's process {how}", advice),))
