"""Servers of dice that can be killed as a machine dies, and what their log tells."""

import os
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from envtorch.providers import ProcessProvider
from envtorch.providers.child import ChildServer
from tests.recovery.dice import LOG
from tests.support import eventually

DICE = "tests.recovery.dice:app"


class Killable:
    """A server that can be killed."""

    def __init__(self, image: str, port: int | None, env_vars: Mapping[str, str]) -> None:
        self._provider = ProcessProvider()
        self.url = self._provider.start_container(image, port, env_vars)
        self._provider.wait_for_ready(self.url, timeout_s=60)

    def kill(self) -> None:
        kill(self._provider)

    def close(self) -> None:
        self._provider.close()


def start_dice(
    log: Path, image: str = DICE, *, port: int | None = None, env_vars: Mapping[str, str] | None = None
) -> Killable:
    """A server that writes its steps to this log."""
    return Killable(image, port, {LOG: str(log), **(env_vars or {})})


def kill(provider: ProcessProvider) -> None:
    """End a server without a word; its children end with it."""
    server = provider._server
    assert isinstance(server, ChildServer)
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not provider.status().is_alive, "the server is dead")


def sessions_in(log: Path) -> dict[str, list[tuple[str, int]]]:
    """What each session has run, by the environment's own log: episodes and the numbers of their steps."""
    found: dict[str, list[tuple[str, int]]] = {}
    for line in log.read_text().splitlines():
        session, episode, number = line.split()
        found.setdefault(session, []).append((episode, int(number)))
    return found


def require_each_step_once(log: Path) -> None:
    """No session has run a step twice, and all in order, as the environment's own log tells."""
    for steps in sessions_in(log).values():
        assert max(Counter(steps).values()) == 1, "no session ran a step twice"
        assert steps == sorted(steps), "in order"
