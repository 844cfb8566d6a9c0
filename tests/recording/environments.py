"""Environments to record: one that is seeded, one that leaks chance, one that takes secrets and arrays."""

import random
from typing import Any, ClassVar

import numpy
from pydantic import SecretStr

from envtorch import Action, Environment, Observation, State


class Move(Action):
    by: int = 1


class Seen(Observation):
    place: int = 0
    luck: float = 0.0


class Walk(Environment[Move, Seen, State]):
    """Walks along a line; `luck` comes from the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    BLOCKING = False

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(0)
        self._place = 0
        self._state = State()

    def reset(self, seed: int | None = None, start: int = 0) -> Seen:
        self._random = random.Random(seed)
        self._place = start
        self._state = State()
        return Seen(place=self._place)

    def step(self, action: Move) -> Seen:
        if action.by == 0:
            raise RuntimeError("standing still is not walking")
        self._state.step_count += 1
        self._place += action.by
        luck = self._luck()
        return Seen(place=self._place, luck=luck, reward=luck, done=self._place >= 10)

    def _luck(self) -> float:
        return self._random.random()

    @property
    def state(self) -> State:
        return self._state


class WalkOnThread(Walk):
    """The same, on a thread of its own."""

    BLOCKING = True


class Moody(Walk):
    """The same, but from its third step on its luck has nothing to do with the seed."""

    def _luck(self) -> float:
        return random.random() if self._state.step_count >= 3 else super()._luck()


class Login(Action):
    user: str
    code: SecretStr
    pixels: list[Any] = []


class Picture(Observation):
    user: str = ""
    pixels: Any = None


class Gallery(Environment[Login, Picture, State]):
    """Takes a secret, gives an array."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    seen: ClassVar[list[str]] = []

    def reset(self, api_key: str = "") -> Picture:
        return Picture(pixels=numpy.zeros((2, 2), dtype=numpy.uint8))

    def step(self, action: Login) -> Picture:
        self.seen.append(action.code.get_secret_value())
        return Picture(user=action.user, pixels=numpy.full((2, 2), 7, dtype=numpy.uint8))

    @property
    def state(self) -> State:
        return State()


class Stroke(Action):
    points: Any = None


class Canvas(Environment[Stroke, Picture, State]):
    """Takes an array."""

    def reset(self) -> Picture:
        return Picture()

    def step(self, action: Stroke) -> Picture:
        return Picture(user=type(action.points).__name__)

    @property
    def state(self) -> State:
        return State()
