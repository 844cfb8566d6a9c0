"""Environments whose whole past is in their state, for tests that copy them."""

import asyncio
import random
import threading
from typing import Any

import numpy as np

from envtorch import Environment
from envtorch.errors import Unsupported
from tests.server.environments import Count, Order, Report
from tests.support import PATIENCE_S


class Walker(Environment[Order, Report, Count]):
    """Every step draws from the environment's own generator and is remembered."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random()
        self._state = Count()
        self.field = np.zeros(4)

    def reset(self, seed: int | None = None) -> Report:
        self._random.seed(seed)
        self._state = Count()
        self.field = np.zeros(4)
        return Report(said="begun")

    def step(self, action: Order) -> Report:
        return self.walk(action)

    def walk(self, action: Order) -> Report:
        draw = self._random.random()
        self.field[self._state.step_count % 4] += draw
        self._state.step_count += 1
        self._state.events.append(f"{action.do} {draw}")
        return Report(said=action.do, data=self.field.tolist(), reward=draw, thread=threading.get_ident())

    @property
    def state(self) -> Count:
        return self._state


class QuickWalker(Walker):
    BLOCKING = False


class AsyncWalker(Walker):
    async def reset(self, seed: int | None = None) -> Report:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(seed)

    async def step(self, action: Order) -> Report:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.walk(action)


class MixedWalker(Walker):
    async def step(self, action: Order) -> Report:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.walk(action)


class Cloner(Walker):
    """Knows better than `deepcopy` how it is copied: what it shares, it shares."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()  # deepcopy would refuse it

    def fork(self) -> "Cloner":
        made = Cloner()
        made._random.setstate(self._random.getstate())
        made._state = self._state.model_copy(deep=True)
        made.field = self.field.copy()
        return made


class AsyncCloner(AsyncWalker):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    async def fork(self) -> "AsyncCloner":
        await asyncio.sleep(0)
        made = AsyncCloner()
        made._random.setstate(self._random.getstate())
        made._state = self._state.model_copy(deep=True)
        made.field = self.field.copy()
        return made


class Locked(Walker):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Unwilling(Walker):
    def fork(self) -> Walker:
        raise Unsupported("the licence covers one copy")


class Selfish(Walker):
    def fork(self) -> Walker:
        return self


class SecondFails(Walker):
    """Can be copied once; notes whose `close` was called."""

    closed: list[int] = []

    def __init__(self) -> None:
        super().__init__()
        self.made: list[SecondFails] = []

    def fork(self) -> "SecondFails":
        if self.made:
            raise RuntimeError("enough")
        self.made.append(SecondFails())
        return self.made[0]

    def close(self) -> None:
        self.closed.append(id(self))


class Slow(Walker):
    """Its `fork()` waits until its test opens the gate."""

    gate = threading.Event()
    entered = threading.Event()
    made: list["Slow"] = []
    """The copies."""
    closed: list["Slow"] = []

    def fork(self) -> "Slow":
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        self.made.append(Slow())
        return self.made[-1]

    def close(self) -> None:
        self.closed.append(self)


WALKERS: list[type[Environment[Any, Any, Any]]] = [
    Walker,
    QuickWalker,
    AsyncWalker,
    MixedWalker,
    Cloner,
    AsyncCloner,
]
