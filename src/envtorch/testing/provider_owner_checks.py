"""The checks of `check_provider` that need an owner of their own: a process that exits, or is killed."""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from envtorch.providers.sweeper import sweep
from envtorch.settings import inherited_environment
from envtorch.testing.provider import ProviderCheck, ProviderSubject, Skipped, answers
from envtorch.testing.provider_owner import MARK, SECRET

__all__ = ["OWNER_CHECKS", "OwnerProcess"]


MOMENTS = (0.05, 0.3, 0.6, 0.9, 1.5)
"""When an owner is killed, as parts of the time that a start usually takes."""


ENGINES = ("DOCKER_*", "CONTAINER_*", "KUBE*", "RAY_ADDRESS")
"""The variables by which an owner finds its engine."""


class OwnerProcess:
    """A process that starts the probe and says how far it is: one word a line."""

    def __init__(self, importable: str, stop_after: str, mark: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "envtorch.testing.provider_owner", importable, stop_after, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited_environment(*ENGINES), SECRET: "not for servers"},
        )

    def reach(self, stage: str) -> str:
        """Wait until the owner says that it has reached `stage`; what it says about it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == stage:
                return rest
            assert word != "failed", f"the owner failed: {rest}"
        raise AssertionError(f"the owner ended before it reached {stage!r}")

    def kill(self) -> None:
        """`kill -9`: no handler runs, nothing is put in order."""
        self._process.kill()
        self._process.wait()

    def exit(self) -> None:
        """Let the owner run to its end, without stopping what it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def owner(subject: ProviderSubject, stop_after: str, mark: str = "none") -> Iterator[OwnerProcess]:
    """An owner in a process of its own."""
    if subject.importable is None:
        raise Skipped("the subject is not importable, so no other process can own it")
    process = OwnerProcess(subject.importable, stop_after, mark)
    try:
        yield process
    finally:
        process.close()
        sweep()


def is_gone(subject: ProviderSubject, url: str) -> None:
    """Sweep until nothing answers: a server needs a moment to notice that its owner is dead."""

    def swept() -> bool:
        sweep()
        return not answers(url)

    subject.eventually(swept, f"nothing answers at {url} any more")


def killed_while_starting(subject: ProviderSubject) -> None:
    with owner(subject, "started") as process:
        url = process.reach("started")
        process.kill()
        is_gone(subject, url)


def killed_when_ready(subject: ProviderSubject) -> None:
    with owner(subject, "ready") as process:
        url = process.reach("ready")
        process.kill()
        is_gone(subject, url)


def killed_while_stopping(subject: ProviderSubject) -> None:
    with owner(subject, "stopping") as process:
        url = process.reach("stopping")
        process.kill()
        is_gone(subject, url)


def killed_at_any_moment(subject: ProviderSubject) -> None:
    if not Path("/proc/self/environ").exists():
        raise Skipped("what runs is looked up in /proc, which is not here")
    with owner(subject, "ready") as process:
        process.reach("made")
        began = time.monotonic()
        process.reach("ready")
        usual_s = time.monotonic() - began
    for moment in MOMENTS:
        mark = secrets.token_hex(16)
        with owner(subject, "ready", mark) as process:
            process.reach("made")
            time.sleep(moment * usual_s)
            process.kill()
            subject.eventually(partial(_swept_clean, mark), "nothing of the dead owner runs any more")


def _swept_clean(mark: str) -> bool:
    sweep()
    return not _runs_with(mark)


def _runs_with(mark: str) -> bool:
    """Whether a process that this user can see has the mark in its environment, in a container or not."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in environment.read_bytes():
                return True
    return False


def interpreter_exit_stops(subject: ProviderSubject) -> None:
    with owner(subject, "ready") as process:
        url = process.reach("ready")
        process.exit()
        assert not answers(url), "the server outlived an orderly exit of its owner"


def living_owner_is_left_alone(subject: ProviderSubject) -> None:
    with owner(subject, "ready") as process:
        url = process.reach("ready")
        sweep()
        assert answers(url), "a sweep removed what a living process owns"


def secrets_stay_with_the_owner(subject: ProviderSubject) -> None:
    with owner(subject, "environment") as process:
        seen = process.reach("environment")
        assert seen == "404", f"the server sees the owner's environment: {SECRET} answered {seen}"


OWNER_CHECKS = (
    ProviderCheck(
        "killed_while_starting",
        "after a kill -9 of the owner between start and ready, and a sweep, nothing runs",
        killed_while_starting,
    ),
    ProviderCheck(
        "killed_when_ready", "after a kill -9 of the owner, and a sweep, nothing runs", killed_when_ready
    ),
    ProviderCheck(
        "killed_while_stopping",
        "after a kill -9 of the owner while it stops its server, and a sweep, nothing runs",
        killed_while_stopping,
    ),
    ProviderCheck(
        "killed_at_any_moment",
        "after a kill -9 of the owner at any moment of a start, and a sweep, no process of it runs",
        killed_at_any_moment,
    ),
    ProviderCheck(
        "interpreter_exit_stops", "when the owner exits, its server is stopped", interpreter_exit_stops
    ),
    ProviderCheck(
        "living_owner_is_left_alone", "a sweep leaves alone what lives", living_owner_is_left_alone
    ),
    ProviderCheck(
        "secrets_stay_with_the_owner",
        "the owner's own environment variables do not reach the server",
        secrets_stay_with_the_owner,
    ),
)
