"""The tally environment and its client, on OpenEnv 0.10's own classes."""

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class TallyAction(Action):
    amount: int
    note: str = ""


class TallyObservation(Observation):
    total: int
    notes: list[str] = []


class TallyState(State):
    total: int = 0
    seed: int | None = None


class TallyEnvironment(Environment):
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

    def step(self, action: TallyAction, timeout_s: float | None = None, **_: Any) -> TallyObservation:
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


class TallyEnv(EnvClient):
    def _step_payload(self, action: TallyAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult:
        observation = TallyObservation(
            **payload["observation"], reward=payload["reward"], done=payload["done"]
        )
        return StepResult(observation=observation, reward=payload["reward"], done=payload["done"])

    def _parse_state(self, payload: dict[str, Any]) -> TallyState:
        return TallyState(**payload)
