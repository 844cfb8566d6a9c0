"""Rewards that can be trained on: finite numbers. Any other is a failure of what gave it, never a zero."""

import math
from collections.abc import Iterable
from typing import Any

from envtorch.protocol.encoding import not_finite, reward_of
from envtorch.types import StepResult

__all__ = ["finite_score", "finite_total", "reward_in"]


def reward_in(result: StepResult[Any]) -> float | None:
    """The reward of a step; None when it has none. Raises `EnvironmentFailed` if it is no finite number.

    A server refuses such a reward itself. A client may make rewards of its own, and OpenEnv's wire has none.
    """
    reward = reward_of(result.reward, strict=True)
    return None if reward is None else float(reward)


def finite_total(rewards: Iterable[float]) -> float:
    """What rewards add up to. Raises `EnvironmentFailed` if that is more than a float can hold."""
    total = sum(rewards)
    if not math.isfinite(total):
        raise not_finite(total, "the sum of an episode's steps")
    return total


def finite_score(score: float) -> float:
    """A score as a float. Raises `EnvironmentFailed` if it is not finite, `TypeError` if it is no number."""
    try:
        is_finite = math.isfinite(score)
    except TypeError:
        raise TypeError(f"the scorer gave {type(score).__name__}: it must give a number") from None
    if not is_finite:
        raise not_finite(float(score), "the scorer")
    return float(score)
