"""Rewards of groups for a trainer that has no place for a rollout without one."""

import math
import statistics
from collections.abc import Sequence

__all__ = ["filled_rewards"]


def filled_rewards(rewards: Sequence[float | None]) -> list[float]:
    """The rewards of a group, with numbers in place of None that change neither the mean nor the deviation.

    A trainer that divides by the group's deviation so gives the scored members the advantages that they would
    have by themselves. The numbers lie in pairs around the mean; an odd one is the mean. One alone cannot do
    more than keep the mean: the deviation is then smaller by `sqrt((n - 2) / (n - 1))`, 0.93 in a group of 8.
    """
    scored = [reward for reward in rewards if reward is not None]
    mean = statistics.fmean(scored) if scored else 0.0
    lost = len(rewards) - len(scored)
    paired = lost - lost % 2
    is_spread = paired > 0 and len(scored) > 1
    distance = statistics.stdev(scored) * math.sqrt(lost / paired) if is_spread else 0.0
    numbers = iter([mean] * (lost % 2) + [mean + distance, mean - distance] * (paired // 2))
    return [next(numbers) if reward is None else reward for reward in rewards]
