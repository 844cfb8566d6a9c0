"""The place of a sandbox among its forks."""

import os
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .prebuilt import Prebuilt

__all__ = ["Lineage"]

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Lineage(Generic[T]):
    """Of which sandbox this is a fork, and what its own forks are made from."""

    parent: T | None = None
    """Its init must outlive ours, for our pid namespace lies inside its."""
    generation: int = 0
    """0 unless this is a fork; else one more than that of its parent."""
    forks: int = 0
    """How many forks of ours still live."""
    seeds: list[int] = field(default_factory=list)
    """What forks are made from: descriptors of our files and of two of our namespaces."""
    next_fork: Prebuilt[T] = field(default_factory=Prebuilt)
    """Namespaces and files for the next fork, built ahead."""

    def close(self) -> None:
        for seed in self.seeds:
            os.close(seed)
        self.seeds = []
