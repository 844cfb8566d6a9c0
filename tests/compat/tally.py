"""A counting environment on EnvTorch; `openenv_side/tally.py` is the same one on OpenEnv."""

from typing import Any

from envtorch.client import EnvClient
from envtorch.env import Environment
from envtorch.types import Action, Observation, State

__all__ = ["TallyAction", "TallyEnv", "TallyEnvironment", "TallyObservation", "TallyState"]


class TallyAction(Action):
    amount: int
    note: str = ""


class TallyObservation(Observation):
    total: int
    notes: list[str] = []


class TallyState(State):
    total: int = 0
    seed: int | None = None


class TallyEnvironment(Environment[TallyAction, TallyObservation, TallyState]):
    """Adds up; done at ten. A negative amount is an exception, for the sake of the error's way back."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = TallyState()
        self._notes: list[str] = []

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, start: int = 0, **_: Any
    ) -> TallyObservation:
        self._state = TallyState(episode_id=episode_id, total=start, seed=seed)
        self._notes = []
        return TallyObservation(total=start, reward=0.0)

    def step(self, action: TallyAction) -> TallyObservation:
        if action.amount < 0:
            raise RuntimeError("a tally only grows")
        self._state.step_count += 1
        self._state.total += action.amount
        self._notes.append(action.note)
        return TallyObservation(
            total=self._state.total,
            notes=list(self._notes),
            reward=action.amount / 10,
            done=self._state.total >= 10,
            metadata={"step": self._state.step_count},
        )

    @property
    def state(self) -> TallyState:
        return self._state


class TallyEnv(EnvClient[TallyAction, TallyObservation, TallyState]):
    """A session with a tally."""
