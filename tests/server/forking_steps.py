"""Environments that fork in their code, whose child returns or raises where it should have ended."""

import asyncio
import os
import signal
import time
from typing import Any

from envtorch import Environment
from tests.server.environments import Count, Order, Report
from tests.support import PATIENCE_S


class Forker(Environment[Order, Report, Count]):
    """`raise` and `return` fork; the child waits for `await child` before it does the one or the other."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = Count()
        self._child = 0
        self._released, self._release = os.pipe()

    def reset(self) -> Report:
        self._state = Count()
        return Report()

    def step(self, action: Order) -> Report:
        return self.obey(action.do)

    def obey(self, do: str) -> Report:
        self._state.step_count += 1
        data: Any = None
        match do:
            case "raise" | "return":
                self._child = os.fork()
                if self._child == 0:
                    os.read(self._released, 1)
                    if do == "raise":
                        raise OSError("the helper process could not do its work")
            case "await child":
                os.write(self._release, b"r")
                data = ended(self._child)
            case "process":
                data = os.getpid()
            case "has forked":
                data = self._child > 0
        return Report(said=f"{do} {self._state.step_count}", data=data)

    @property
    def state(self) -> Count:
        return self._state

    def close(self) -> None:
        os.close(self._released)
        os.close(self._release)


class QuickForker(Forker):
    BLOCKING = False


class AsyncForker(Forker):
    async def reset(self) -> Report:  # type: ignore[override]
        return super().reset()

    async def step(self, action: Order) -> Report:  # type: ignore[override]
        if action.do == "fork later":
            self._later = asyncio.get_running_loop().create_task(self._fork_later())
        return self.obey(action.do)

    async def _fork_later(self) -> None:
        await asyncio.sleep(0.01)
        self._child = os.fork()


class MixedForker(Forker):
    async def step(self, action: Order) -> Report:  # type: ignore[override]
        return self.obey(action.do)


class ForksWhenBuilt(Forker):
    """Its constructor forks."""

    def __init__(self) -> None:
        super().__init__()
        self._child = os.fork()
        if self._child == 0:
            os.read(self._released, 1)
            raise OSError("the helper process could not do its work")


class QuickForksWhenBuilt(ForksWhenBuilt):
    BLOCKING = False


def ended(child: int) -> int | None:
    """The exit status of a child. One that does not end is killed, and has none."""
    deadline = time.monotonic() + PATIENCE_S / 2
    while time.monotonic() < deadline:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
