"""Carts that are pushed alone and together: environments with `step_many`."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from envtorch import Action, Actions, EnvClient, Environment, Observation, State
from envtorch.client.blocking.vector import VectorEnv

__all__ = [
    "COUNT",
    "AwaitedCart",
    "Cart",
    "CartAlone",
    "CartEnv",
    "CartOfRows",
    "CartOnThread",
    "Push",
    "Seen",
    "Vector",
    "Wire",
    "told",
]

COUNT = 5


class Push(Action):
    force: float
    steps: int = 1
    word: str = ""


class Seen(Observation):
    position: float = 0.0
    trail: Any = None
    word: str = "none"


class Cart(Environment[Push, Seen, State]):
    """A cart that is pushed; its own arithmetic is on arrays, of one or of many."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_RESET = False  # most of these tests step at once
    BLOCKING = False
    calls: ClassVar[list[int]] = []
    """How many environments each call of `step_many` was for."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.count = np.float64(0), 0

    def reset(self, seed: int | None = None, start: float = 0.0) -> Seen:
        self.position, self.count = np.float64(start), 0
        return Seen(position=start)

    def step(self, action: Push) -> Seen:
        if action.word == "fail":
            raise RuntimeError("derailed")
        self.position += action.force * action.steps
        self.count += 1
        return Seen(
            position=float(self.position),
            trail=np.array([self.position, self.count]),
            word=action.word,
            reward=float("nan") if action.word == "odd" else -abs(float(self.position)),
            terminated=bool(self.position > 10),
            truncated=self.count > 100,
            metadata={"count": self.count} if self.count % 2 else {},
        )

    @classmethod
    def step_many(cls, environments: Sequence["Cart"], actions: Actions[Push]) -> Any:
        cls.calls.append(len(environments))
        words = actions.column("word")
        if "fail" in words:
            raise RuntimeError("derailed")
        if "short" in words:
            return {"position": [0.0]}
        if "few" in words:
            return []
        moved = np.asarray(actions.column("force")) * np.asarray(actions.column("steps"))
        positions = np.array([environment.position for environment in environments]) + moved
        for environment, position in zip(environments, positions, strict=True):
            environment.position = position
            environment.count += 1
        counts = [environment.count for environment in environments]
        return {
            "position": positions,
            "trail": np.column_stack([positions, counts]),
            "word": words,
            "reward": np.where(np.asarray(words) == "odd", np.nan, -abs(positions)),
            "terminated": positions > 10,
            "truncated": [count > 100 for count in counts],
            "metadata": [{"count": count} if count % 2 else {} for count in counts],
        }

    @property
    def state(self) -> State:
        return State(step_count=self.count)


class CartOfRows(Cart):
    """Gives observations, and not their columns."""

    @classmethod
    def step_many(cls, environments: Sequence[Cart], actions: Actions[Push]) -> Any:
        cls.calls.append(len(environments))
        return [one.step(action) for one, action in zip(environments, actions, strict=True)]


class AwaitedCart(Cart):
    """Is awaited alone, and stepped with others all the same."""

    BLOCKING = True

    async def reset_async(self, seed: int | None = None, start: float = 0.0) -> Seen:
        return self.reset(seed, start)

    async def step_async(self, action: Push) -> Seen:
        await asyncio.sleep(0.1 if action.word == "slow" else 0)
        return self.step(action)


class CartOnThread(Cart):
    BLOCKING = True


class CartAlone(Cart):
    """Means something else by that name."""

    def step_many(self, times: int) -> int:  # type: ignore[override]
        return times


class CartEnv(EnvClient[Push, Seen, State]): ...


Vector = VectorEnv[Push, Seen, State]
Wire = Literal["json", "msgpack"]


def told(result: Any) -> list[Any]:
    """All that a result says of each session."""
    return [
        (
            one.observation.model_dump(exclude={"trail"}),
            None if one.observation.trail is None else np.asarray(one.observation.trail).tolist(),
            (one.reward, one.done, one.terminated, one.truncated, one.metadata),
        )
        for one in result
    ]
