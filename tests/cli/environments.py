"""An environment whose actions have every kind of field that a form can show."""

from typing import Literal

from pydantic import BaseModel, Field, SecretStr

from envtorch import Action, Environment, Observation, State


class Tool(BaseModel):
    name: Literal["hammer", "saw"] = "hammer"
    strength: float = Field(default=0.5, ge=0, le=1)


class Work(Action):
    what: Literal["cut", "nail", "paint"]
    carefully: bool = False
    times: int = Field(default=1, ge=1, le=9)
    tool: Tool = Tool()
    key: SecretStr | None = None
    marks: list[int] = []


class Bench(Observation):
    said: str = ""
    done_so_far: list[str] = []


class Workshop(Environment[Work, Bench, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._done: list[str] = []
        self._state = State()

    def reset(self, seed: int | None = None, level: int = 1) -> Bench:
        self._done, self._state = [], State()
        return Bench(said=f"A clean bench, level {level}, seed {seed}.")

    def step(self, action: Work) -> Bench:
        self._state.step_count += 1
        how = "carefully" if action.carefully else "roughly"
        self._done += [action.what] * action.times
        said = f"{action.what} {how} with the {action.tool.name} at {action.tool.strength:g}"
        return Bench(
            said=said, done_so_far=list(self._done), reward=float(action.times), done=len(self._done) > 5
        )

    @property
    def state(self) -> State:
        return self._state


class OneMan(Workshop):
    """Not for two at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = False
