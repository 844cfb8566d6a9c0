"""Rubrics that look at a whole episode, and share its score out among its steps."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from envtorch.rubrics.base import Rubric

__all__ = ["ExponentialDiscountingTrajectoryRubric", "TrajectoryRubric"]


class TrajectoryRubric(Rubric):
    """Collects the steps of an episode; scores them when an observation is `done`.

    Until then every step scores `intermediate_reward`. Episodes live in memory: an observation should
    hold what scoring needs, and no tensor on a device.
    """

    def __init__(self, intermediate_reward: float = 0.0) -> None:
        super().__init__()
        self.intermediate_reward = intermediate_reward
        self._trajectory: list[tuple[Any, Any]] = []

    @abstractmethod
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> Any:
        """The score of a whole episode: its `(action, observation)` pairs, in order."""

    @abstractmethod
    def compute_step_rewards(self) -> list[float]:
        """The score of the episode, shared out: one reward per step."""

    def forward(self, action: Any, observation: Any) -> Any:
        self._trajectory.append((action, observation))
        if getattr(observation, "done", False):
            return self.score_trajectory(self._trajectory)
        return self.intermediate_reward

    @property
    def trajectory(self) -> list[tuple[Any, Any]]:
        """The episode so far; a copy."""
        return list(self._trajectory)

    def reset(self) -> None:
        super().reset()
        self._trajectory = []

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "intermediate_reward": self.intermediate_reward}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.intermediate_reward = state.get("intermediate_reward", self.intermediate_reward)


class ExponentialDiscountingTrajectoryRubric(TrajectoryRubric):
    """Gives the last step the whole score, and each step before it `gamma` times the next one's."""

    def __init__(self, gamma: float = 0.99, intermediate_reward: float = 0.0) -> None:
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma is between 0 and 1, and not {gamma}")
        super().__init__(intermediate_reward)
        self.gamma = gamma

    def compute_step_rewards(self) -> list[float]:
        if not self._trajectory:
            return []
        score = self.score_trajectory(self._trajectory)
        last = len(self._trajectory) - 1
        return [self.gamma ** (last - step) * score for step in range(last + 1)]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "gamma": self.gamma}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.gamma = state.get("gamma", self.gamma)
