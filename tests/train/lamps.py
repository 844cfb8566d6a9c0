"""A game that tiny models learn, served in this process, and sessions that are lost on purpose."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from envtorch import Action, ConcurrencyConfig, EnvClient, Environment, Observation, State
from envtorch.rollout import ChatFormat, Completion, NotAnAction
from envtorch.server import create_app
from tests.support import Running, running

__all__ = ["WORDS", "Lamp", "LampEnv", "LampFormat", "Press", "lamps", "lose"]

LAMPS = 4
WORDS = [*(f"lamp{number}" for number in range(LAMPS)), *(f"press{number}" for number in range(LAMPS))]


class Press(Action):
    """Press the button under a lamp."""

    button: int


class Lit(Observation):
    lamp: str = ""


class Lamp(Environment[Press, Lit, State]):
    """The lamp that is on wants its button pressed, twice; each right one is worth a half."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    loop: asyncio.AbstractEventLoop
    resets = 0

    def __init__(self) -> None:
        self._state = State()

    async def reset(self, seed: int | None = None) -> Lit:
        Lamp.loop = asyncio.get_running_loop()
        Lamp.resets += 1
        self._random = random.Random(seed)
        self._state = State()
        return self._next()

    async def step(self, action: Press) -> Lit:
        if action.button < 0:
            raise ZeroDivisionError("there is no such button")
        self._state.step_count += 1
        reward = 0.5 * (action.button == self._lamp)
        return self._next(reward=reward, done=self._state.step_count == 2)

    def _next(self, **outcome: Any) -> Lit:
        self._lamp = self._random.randrange(LAMPS)
        return Lit(lamp=f"lamp{self._lamp}", **outcome)

    @property
    def state(self) -> State:
        return self._state


class LampEnv(EnvClient[Press, Lit, State]): ...


class LampFormat(ChatFormat):
    """`press3` is an action."""

    def actions(self, completion: Completion) -> Sequence[Press]:
        word = completion.text.strip()
        if not word.startswith("press") or word not in WORDS:
            raise NotAnAction(f"{word!r} is not a button")
        return [Press(button=int(word.removeprefix("press")))]


@contextmanager
def lamps(room: int = 128) -> Iterator[Running]:
    """A server of lamps."""
    config = ConcurrencyConfig(max_concurrent_envs=room, reconnect_grace=5)
    with running(create_app(Lamp, Press, Lit, concurrency_config=config)) as server:
        yield server


def lose(server: Running, count: int = 1) -> None:
    """End sessions of the server behind their clients' backs."""
    for session in server.sessions.all()[:count]:
        closing = session.close("it was lost on purpose")
        asyncio.run_coroutine_threadsafe(closing, Lamp.loop).result()
