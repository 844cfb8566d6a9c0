"""The checks of `check_provider` that need an owner of their own: a process that exits, or is killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from envtorch.providers.sweeper import sweep
from envtorch.settings import inherited_environment
from envtorch.testing.provider import ProviderCheck, ProviderSubject, Skipped, answers
from envtorch.testing.provider_owner import SECRET

__all__ = ["OWNER_CHECKS", "OwnerProcess"]


class OwnerProcess:
    """A process that starts the probe and says how far it is: one word a line."""

    def __init__(self, importable: str, stop_after: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "envtorch.testing.provider_owner", importable, stop_after],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited_environment("DOCKER_*", "CONTAINER_*", "KUBE*"), SECRET: "not for servers"},
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
def owner(subject: ProviderSubject, stop_after: str) -> Iterator[OwnerProcess]:
    """An owner in a process of its own."""
    if subject.importable is None:
        raise Skipped("the subject is not importable, so no other process can own it")
    process = OwnerProcess(subject.importable, stop_after)
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
