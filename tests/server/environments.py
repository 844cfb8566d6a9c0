"""Environments that misbehave, or behave in some particular way, on request."""

import asyncio
import threading
from typing import Any

import numpy as np
from pydantic import field_validator

from envtorch import Action, Environment, Observation, State
from tests.support import PATIENCE_S


class Order(Action):
    """What the environment shall do."""

    do: str = "nothing"

    @field_validator("do")
    @classmethod
    def legal(cls, do: str) -> str:
        if do == "illegal":
            raise ValueError("that order is not legal")
        return do


class Report(Observation):
    said: str = ""
    data: Any = None
    thread: int = 0


class Count(State):
    events: list[str] = []


class Obedient(Environment[Order, Report, Count]):
    """A blocking environment. `gate` holds a step up until its test opens it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_RESET = False  # most tests step at once; that a reset comes first: test_step_runs_once.py
    gate = threading.Event()
    entered = threading.Event()
    closed: list[int] = []

    def __init__(self) -> None:
        super().__init__()
        self._state = Count()
        self._inside = 0
        self._born_on = threading.get_ident()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Report:
        self._state = Count(episode_id=episode_id, events=sorted(options))
        return Report(said=f"seed {seed}", thread=threading.get_ident())

    def step(self, action: Order, timeout_s: float | None = None) -> Report:
        self._inside += 1
        assert self._inside == 1, "two calls at once"
        try:
            return self._obey(action, timeout_s)
        finally:
            self._inside -= 1

    def _obey(self, action: Order, timeout_s: float | None) -> Report:
        self._state.step_count += 1
        match action.do:
            case "fail":
                raise RuntimeError("kaboom")
            case "wait":
                self.entered.set()
                assert self.gate.wait(PATIENCE_S)
            case "array":
                return Report(data=np.eye(2))
            case "unencodable":
                return Report(data={"deep": [object()]})
            case "timeout":
                return Report(said=f"{timeout_s}")
        return Report(said=action.do, thread=threading.get_ident(), reward=1.0)

    @property
    def state(self) -> Count:
        return self._state

    def close(self) -> None:
        self.closed.append(threading.get_ident())
        assert threading.get_ident() == self._born_on


class AsyncObedient(Environment[Order, Report, Count]):
    """The same on the event loop."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_RESET = False  # as above

    def __init__(self) -> None:
        super().__init__()
        self._state = Count()

    async def reset(self, seed: int | None = None) -> Report:
        await asyncio.sleep(0)
        self._state = Count()
        return Report(said=f"seed {seed}", thread=threading.get_ident())

    async def step(self, action: Order) -> Report:
        await asyncio.sleep(0)
        self._state.step_count += 1
        return Report(said=action.do, thread=threading.get_ident())

    @property
    def state(self) -> Count:
        return self._state


class Mixed(AsyncObedient):
    """Blocks in `reset`, awaits in `step`, and keeps a task of its own going in between."""

    def reset(self, seed: int | None = None) -> Report:  # type: ignore[override]
        self._state = Count()
        return Report(said=f"seed {seed}", thread=threading.get_ident())


class Quick(Obedient):
    """Never blocks, and says so."""

    BLOCKING = False


class Unbuildable(Obedient):
    def __init__(self) -> None:
        raise OSError("no such licence server")


class Awaited(Obedient):
    """`Obedient`, awaited on the event loop."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **o: Any) -> Report:
        return self.reset(seed, episode_id, **o)

    async def step_async(self, action: Order, timeout_s: float | None = None) -> Report:
        await asyncio.sleep(0)
        return self.step(action, timeout_s)


WAYS: dict[str, tuple[type[Environment[Order, Report, Count]], dict[str, Any]]] = {
    "straight from the wire, on a thread": (Obedient, {}),
    "straight from the wire, on the loop": (Quick, {}),
    "straight from the wire, awaited": (Awaited, {}),
    "through ASGI, on a thread": (Obedient, {"ws": "websockets-sansio"}),
    "through ASGI, on the loop": (Quick, {"ws": "websockets-sansio"}),
}
"""How frames and steps can travel: on our own line or any ASGI server's, and where the environment lives."""
