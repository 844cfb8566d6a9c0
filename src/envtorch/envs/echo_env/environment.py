"""The echo environment itself."""

from uuid import uuid4

from envtorch.env import Environment
from envtorch.envs.echo_env.models import EchoAction, EchoObservation, EchoState

__all__ = ["EchoEnvironment"]


class EchoEnvironment(Environment[EchoAction, EchoObservation, EchoState]):
    """Says each message back; the reward is a tenth of its length."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    DETERMINISTIC = True

    def __init__(self) -> None:
        super().__init__()
        self._state = EchoState(episode_id=str(uuid4()))

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> EchoObservation:
        self._state = EchoState(episode_id=episode_id or str(uuid4()))
        return EchoObservation(echoed_message="Echo environment ready!", reward=0.0)

    def step(self, action: EchoAction) -> EchoObservation:
        self._state.step_count += 1
        return EchoObservation(
            echoed_message=action.message,
            message_length=len(action.message),
            reward=0.1 * len(action.message),
            metadata={"original_message": action.message, "step": self._state.step_count},
        )

    @property
    def state(self) -> EchoState:
        return self._state
