"""A game that a policy learns in seconds, served to the frameworks under test."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from envtorch import Action, EnvClient, Environment, Observation, State
from envtorch.server import create_app
from tests import patient
from tests.support import Running, running

Button = Annotated[int, Field(ge=0, le=9)]
FORBIDDEN = 9
"""Pressing this button makes the environment's own code fail, in a game that forbids it."""


class Press(Action):
    button: Button


class Light(Observation):
    light: Button = 0


class Buttons(Environment[Press, Light, State]):
    """Ten buttons, and a light that names one. Each right press is worth `1 / rounds`."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, rounds: int = 3, cut: int = 0, forbids: bool = False) -> Light:
        """`cut` truncates the episode after so many presses."""
        self._random = random.Random(seed)
        self._state = State()
        self._rounds, self._cut, self._forbids = rounds, cut, forbids
        self._light = self._random.randrange(10)
        return Light(light=self._light)

    def step(self, action: Press) -> Light:
        if self._forbids and action.button == FORBIDDEN:
            raise ZeroDivisionError("the forbidden button")
        self._state.step_count += 1
        reward = float(action.button == self._light) / self._rounds
        self._light = self._random.randrange(10)
        over = self._state.step_count >= self._rounds
        cut = self._state.step_count == self._cut
        return Light(light=self._light, reward=reward, done=over or cut, truncated=cut)

    @property
    def state(self) -> State:
        return self._state


class ButtonsEnv(EnvClient[Press, Light, State]): ...


@contextmanager
def buttons(sessions: int = 64, **options: Any) -> Iterator[Running]:
    """A server of the game. `POST /lose` ends every session behind its client's back."""
    app = create_app(Buttons, sessions=sessions, **options)

    @app.post("/lose")
    async def lose() -> int:
        live = server.sessions.all()
        for session in live:
            await session.close("it was lost on purpose")
        return len(live)

    with running(app) as server:
        yield server


def lose(server: Running) -> None:
    """End every session behind its client's back."""
    assert patient.post(f"{server.url}/lose").json() > 0
