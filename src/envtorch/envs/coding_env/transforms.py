"""Rewards from the code's own text, with the figures of OpenEnv's coding environment.

They shape a policy; they protect nothing. What protects is the sandbox, which does not read the code. It is
not parsed here either: the interpreter that was to run it says whether it is Python.
"""

import re
from collections.abc import Mapping
from typing import Any

from envtorch.env import Transform
from envtorch.envs.coding_env.models import CodeObservation
from envtorch.errors import ConfigurationError
from envtorch.transforms import CompositeTransform

__all__ = ["CODE_KEY", "PARSED_KEY", "CodeQuality", "CodeSafety", "safe_coding_transform", "transform_named"]

CODE_KEY = "last_code"
"""Where an observation's metadata holds the code that was run."""

PARSED_KEY = "last_code_parsed"
"""Where it says whether that code is Python: what the interpreter that was to run it found."""

UNSAFE = (r"import\s+os", r"import\s+subprocess", r"eval\(", r"exec\(", r"__import__", r"open\(")


class CodeSafety(Transform[CodeObservation]):
    """Sets the reward to `penalty` where the code looks dangerous, else to 0 where there is none yet."""

    def __init__(self, penalty: float = -1.0) -> None:
        self.penalty = penalty

    def __call__(self, observation: CodeObservation) -> CodeObservation:
        code = observation.metadata.get(CODE_KEY)
        if code is None:
            return observation
        found = next((pattern for pattern in UNSAFE if re.search(pattern, code)), None)
        if found is not None:
            return _with(observation, self.penalty, {"safety_violation": found})
        return observation if observation.reward is not None else _with(observation, 0.0, {})


class CodeQuality(Transform[CodeObservation]):
    """Adds to the reward: a bonus for short code, a penalty for code that its interpreter could not parse."""

    def __init__(
        self, concise_bonus: float = 0.1, concise_length: int = 100, syntax_penalty: float = -0.2
    ) -> None:
        self.concise_bonus = concise_bonus
        self.concise_length = concise_length
        self.syntax_penalty = syntax_penalty

    def __call__(self, observation: CodeObservation) -> CodeObservation:
        code = observation.metadata.get(CODE_KEY)
        if code is None:
            return observation
        bonus = self.concise_bonus if len(code.strip()) <= self.concise_length else 0.0
        penalty = 0.0 if observation.metadata.get(PARSED_KEY, True) else self.syntax_penalty
        return _with(observation, (observation.reward or 0.0) + bonus + penalty, {})


def safe_coding_transform() -> CompositeTransform[CodeObservation]:
    """OpenEnv's rewards: safety first, then quality."""
    return CompositeTransform([CodeSafety(), CodeQuality()])


def transform_named(name: str) -> CompositeTransform[CodeObservation]:
    """The transform of that name. Raises `ConfigurationError` when there is none."""
    if name != "openenv":
        raise ConfigurationError(f"there is no transform {name!r}: it is 'openenv', or a Transform of yours")
    return safe_coding_transform()


def _with(observation: CodeObservation, reward: float, facts: Mapping[str, Any]) -> CodeObservation:
    return observation.model_copy(update={"reward": reward, "metadata": {**observation.metadata, **facts}})
