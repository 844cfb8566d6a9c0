"""Estimates with intervals: how often a policy passes, and how sure that is."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Estimate", "mean_estimate", "pass_at_k"]

Z = 1.959963984540054
"""Standard deviations around the mean of a normal distribution that hold 95 % of it."""


class Estimate(NamedTuple):
    """A figure, and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that one of `k` samples passes, when `passed` of `samples` did: without bias."""
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {passed} that passed among {samples} is not defined")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def mean_estimate(rates: Sequence[float], samples: int) -> Estimate | None:
    """The mean of what each task came to, between 0 and 1; None when there is no task.

    Tasks are the units: samples of one task are alike, so counting each as an observation would make the
    interval too narrow. It is Wilson's interval, for as many observations as have the variance between tasks,
    and at least as wide as for `samples` independent ones. When every task passes, or none, it counts tasks.
    """
    if not rates:
        return None
    mean, count = statistics.fmean(rates), len(rates)
    if count == 1:
        return _wilson(mean, samples)
    variance = statistics.variance(rates) / count
    spread = mean * (1 - mean)
    if spread <= 0:
        return _wilson(mean, count)
    return _wilson(mean, min(spread / variance, samples) if variance > 0 else samples)


def _wilson(rate: float, observations: float) -> Estimate:
    squared = Z * Z / observations
    middle = (rate + squared / 2) / (1 + squared)
    half = Z / (1 + squared) * math.sqrt(rate * (1 - rate) / observations + squared / (4 * observations))
    return Estimate(rate, max(0.0, min(middle - half, rate)), min(1.0, max(middle + half, rate)))
