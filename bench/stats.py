"""Medians, spreads, percentiles and ratios. No I/O."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    rank = math.ceil(share * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


@dataclass(frozen=True, slots=True)
class Summary:
    """What the rounds of one measurement came to."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        if not values:
            raise ValueError("no rounds, nothing to sum up")
        return cls(statistics.median(values), min(values), max(values), len(values))

    @property
    def spread(self) -> float:
        """From lowest to highest, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Summary:
    """Ours over theirs, round by round: what slowed the machine in a round slowed both."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds of one and {len(theirs)} of the other cannot be paired")
    return Summary.of([mine / other for mine, other in zip(ours, theirs, strict=True)])
