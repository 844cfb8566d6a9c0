"""Environments for the page: a game with legal moves and a drawing, a form of every kind of field, tools."""

import random
from html import escape
from typing import Any, Literal

from fastmcp import FastMCP
from pydantic import BaseModel, Field, SecretStr

from envtorch import Action, Environment, Observation, State
from envtorch.mcp import MCPEnvironment


class Move(Action):
    """A step on a line."""

    direction: Literal["left", "right"]
    by: int = Field(default=1, ge=1, le=3, description="How far")


class Place(Observation):
    """Where the walker stands."""

    position: int = 0
    luck: float = 0.0


class Walker(Environment[Move, Place, State]):
    """Walk on a line of nine squares; the right end is home."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(0)
        self._position = 4
        self._state = State()

    def reset(self, seed: int | None = None, start: int = 4) -> Place:
        self._random = random.Random(seed)
        self._position = start
        self._state = State(episode_id=f"walk-{seed}")
        return Place(position=start)

    def step(self, action: Move) -> Place:
        if action.by == 3 and self._position == 0:
            raise RuntimeError("there is a wall to the left")
        self._position += action.by if action.direction == "right" else -action.by
        self._state.step_count += 1
        home = self._position >= 8
        return Place(
            position=self._position,
            luck=round(self._random.random(), 3),
            reward=1.0 if home else 0.1 * action.by * (1 if action.direction == "right" else -1),
            done=home,
        )

    @property
    def state(self) -> State:
        return self._state

    def render_web(self, observation: dict[str, Any]) -> str | None:
        squares = ("🚶" if place == observation["position"] else "▫️" for place in range(9))
        return f'<p id="walk" style="font-size:2rem">{escape("".join(squares))}🏠</p>'

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        return [("← left", {"direction": "left"}), ("right →", {"direction": "right"})]


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    number: int


class Everything(Action):
    """One field of every kind."""

    title: str = Field(description="A line of text")
    message: str
    size: Literal["small", "large"]
    count: int
    ratio: float = 0.5
    urgent: bool = False
    perhaps: bool | None = None
    home: Address
    tags: list[Literal["red", "green"]] = []
    extra: dict[str, Any] | None = None
    api_key: str = ""
    pin: SecretStr | None = None
    kind: Literal["order"] = "order"


class Heard(Observation):
    """What was understood."""

    heard: dict[str, Any] = {}


class Listener(Environment[Everything, Heard, State]):
    """Says back what it understood, without the secrets."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, **options: Any) -> Heard:
        return Heard(heard=options)

    def step(self, action: Everything) -> Heard:
        return Heard(heard=action.model_dump(mode="json", exclude={"api_key", "pin", "metadata"}))

    @property
    def state(self) -> State:
        return State()


class ToolBench(MCPEnvironment):
    """Two tools, one of which fails when asked to."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server: FastMCP = FastMCP("bench")

        @server.tool
        def add(a: int, b: int = 1) -> int:
            """Add two numbers."""
            return a + b

        @server.tool
        def shout(text: str) -> str:
            """Say it louder."""
            return text.upper()

        super().__init__(server)
        self._state = State()

    def reset(self, **options: Any) -> Observation:
        self._state = State()
        return Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return self._state
