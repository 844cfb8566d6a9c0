"""Environments that each have one fault, and are otherwise in order."""

import os
import random
import socket
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

from envtorch.batch_actions import Actions
from envtorch.env import Environment
from envtorch.types import Action, Observation, State


class Move(Action):
    by: int = 1


class Seen(Observation):
    at: Any = 0
    been: list[int] = []


class Sound(Environment[Move, Seen, State]):
    """Nothing is wrong with this one; the others spoil one thing each."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._rng = random.Random(0)
        self._been: list[int] = []

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        self._rng = random.Random(seed)
        self._state = State(episode_id=episode_id)
        self._been = []
        return Seen(at=0)

    def step(self, action: Move) -> Seen:
        self._state.step_count += 1
        self._been.append(action.by + self._rng.randrange(100))
        return Seen(at=self._been[-1], been=list(self._been), reward=0.5)

    @property
    def state(self) -> State:
        return self._state


class Together(Sound):
    """In order as well, and steps together."""

    BLOCKING = False

    @classmethod
    def step_many(cls, environments: Sequence["Together"], actions: Actions[Move]) -> Any:
        seen = [one.step(action) for one, action in zip(environments, actions, strict=True)]
        return {
            "at": [one.at for one in seen],
            "been": [one.been for one in seen],
            "reward": [one.reward for one in seen],
        }


class TogetherAwaited(Together):
    BLOCKING = True

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        return self.reset(seed, episode_id)

    async def step_async(self, action: Move) -> Seen:
        return self.step(action)


class TogetherInTheWrongOrder(Together):
    @classmethod
    def step_many(cls, environments: Sequence[Together], actions: Actions[Move]) -> Any:
        return [one.step(actions[0]) for one in environments][::-1]


class TogetherOtherwise(Together):
    @classmethod
    def step_many(cls, environments: Sequence[Together], actions: Actions[Move]) -> Any:
        return super().step_many(environments, actions) | {"reward": [0.25] * len(environments)}


class TogetherTooFew(Together):
    @classmethod
    def step_many(cls, environments: Sequence[Together], actions: Actions[Move]) -> Any:
        return {"at": [0]}


class TogetherUncounted(Together):
    @classmethod
    def step_many(cls, environments: Sequence[Together], actions: Actions[Move]) -> Any:
        seen = super().step_many(environments, actions)
        for one in environments:
            one._state.step_count -= 1
        return seen


class TogetherOnThread(Together):
    BLOCKING = True


class TogetherByMistake(Sound):
    def step_many(self, environments: Any, actions: Any) -> Any:  # type: ignore[override]
        return []


class GivesNothing(Sound):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        super().reset(seed, episode_id)
        return None  # type: ignore[return-value]


class GivesTheWrongThings(GivesNothing):
    def step(self, action: Move) -> Seen:
        return super().step(action), 1.0, False  # type: ignore[return-value]


class CannotTravel(Sound):
    def step(self, action: Move) -> Seen:
        seen = super().step(action)
        seen.at = object()
        return seen


class NotANumber(Sound):
    def step(self, action: Move) -> Seen:
        seen = super().step(action)
        seen.reward = float("nan")
        return seen


class TooMuch(Sound):
    def step(self, action: Move) -> Seen:
        seen = super().step(action)
        seen.reward = 12.0
        return seen


class CountsOn(Sound):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        steps = self._state.step_count
        seen = super().reset(seed, episode_id)
        self._state.step_count = steps
        return seen


class SharesItsList(Sound):
    def step(self, action: Move) -> Seen:
        seen = super().step(action)
        return Seen.model_construct(**{**vars(seen), "been": self._been})


class ChangesTheAction(Sound):
    def step(self, action: Move) -> Seen:
        seen = super().step(action)
        action.by = 0
        return seen


class IgnoresTheSeed(Sound):
    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        return super().reset(random.SystemRandom().randrange(2**62), episode_id)


class SharedByAll(Sound):
    visited: ClassVar[list[int]] = []

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        SharedByAll.visited.clear()
        return super().reset(seed, episode_id)

    def step(self, action: Move) -> Seen:
        seen = super().step(action)
        SharedByAll.visited.append(action.by)
        seen.at = len(SharedByAll.visited)
        return seen


class MovesTheProcess(Sound):
    def step(self, action: Move) -> Seen:
        os.chdir("/")
        return super().step(action)


class LeavesThreads(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait, daemon=True).start()
        LEFT.append(self.stop)


class LeavesSockets(Sound):
    def __init__(self) -> None:
        super().__init__()
        OPEN.append(socket.socket())


class CannotClose(Sound):
    def close(self) -> None:
        raise RuntimeError("it is stuck")


class Crashes(Sound):
    def step(self, action: Move) -> Seen:
        raise ZeroDivisionError("division by zero")


LEFT: list[threading.Event] = []
OPEN: list[socket.socket] = []
