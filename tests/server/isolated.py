"""Environments for processes of their own: they crash, hang, and count what only they can see."""

import asyncio
import ctypes
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from envtorch import Environment
from envtorch.server.runners.process.process_messages import HEAD, NO_CALL, Hello, RawAnswer, frame
from tests.server.environments import Count, Order, Report

GLOBAL: list[str] = []
"""What a module keeps: each process has its own."""


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _sockets() -> list[int]:
    return [descriptor for descriptor in range(3, 99) if _is_socket(descriptor)]


def _session_socket() -> int:
    return _sockets()[0]


class Reckless(Environment[Order, Report, Count]):
    """Does to its process what it is told to. It does not promise to share one with others of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self._state = Count()

    def reset(self, seed: int | None = None) -> Report:
        GLOBAL.clear()
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        self._state = Count()
        return Report(said=f"seed {seed}")

    def step(self, action: Order) -> Report:
        self._state.step_count += 1
        GLOBAL.append(action.do)
        return Report(said=action.do, data=self.obey(action.do))

    def obey(self, do: str) -> Any:
        match do.split():
            case ["exit", status]:
                os._exit(int(status))
            case ["segfault"]:
                ctypes.string_at(0)
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["hang"]:
                time.sleep(600)
            case ["spin"]:
                while True:
                    pass
            case ["fail"]:
                raise RuntimeError("kaboom")
            case ["leave"]:
                raise SystemExit("I am off")
            case ["process"]:
                return os.getpid()
            case ["draw"]:
                return [random.random(), float(np.random.random())]
            case ["start"]:
                return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
            case ["thread"]:
                threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
            case ["large"]:
                return "x" * 3_000_000
            case ["descriptors"]:
                return sorted(os.listdir("/proc/self/fd"))
            case ["garbage"]:
                os.write(_session_socket(), b"\xff" * 64)
            case ["answer", number]:
                os.write(_session_socket(), frame(RawAnswer(b"not yours"), int(number)))
        return list(GLOBAL)

    @property
    def state(self) -> Count:
        return self._state


class SecondCopyDies(Reckless):
    """After `arm`, the second copy that is made ends at once. `close` is noted in a file, if one is named."""

    def __init__(self) -> None:
        super().__init__()
        self._notes: str | None = None
        self._process = os.getpid()
        self._forks = 2
        os.register_at_fork(before=self._count, after_in_child=self._die)

    def obey(self, do: str) -> Any:
        match do.split():
            case ["arm"]:
                self._forks = 0
            case ["notes", path]:
                self._notes = path
        return super().obey(do)

    def _count(self) -> None:
        self._forks += 1

    def _die(self) -> None:
        if self._forks == 2 and os.getppid() == self._process:
            os._exit(9)

    def close(self) -> None:
        if self._notes is not None:
            with open(self._notes, "a") as notes:
                notes.write(f"{os.getpid()}\n")


class SecondCopyBabbles(SecondCopyDies):
    """After `arm`, the second copy that is made writes frames of its own before its first message."""

    def obey(self, do: str) -> Any:
        match do.split():
            case ["babble", *names]:
                self._babble = names
            case ["arm"]:
                self._known = _sockets()
        return super().obey(do)

    def _die(self) -> None:
        if self._forks == 2 and os.getppid() == self._process:
            _, line, *_ = [socket for socket in _sockets() if socket not in self._known]
            frames = {"hello": frame(Hello(os.getpid()), NO_CALL), "nonsense": HEAD.pack(1, NO_CALL) + b"?"}
            for name in self._babble:
                os.write(line, frames[name])


class AsyncReckless(Reckless):
    """The same, awaited, with a task of its own that goes on between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)

    async def reset(self, seed: int | None = None) -> Report:  # type: ignore[override]
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return super().reset(seed)

    async def step(self, action: Order) -> Report:  # type: ignore[override]
        await asyncio.sleep(0)
        if action.do == "ticks":
            return Report(data=self.ticks)
        return super().step(action)


class Stillborn(Reckless):
    def __init__(self) -> None:
        os._exit(3)


class Failing(Reckless):
    def __init__(self) -> None:
        raise OSError("no such licence server")


def make_reckless() -> Reckless:
    return Reckless()
