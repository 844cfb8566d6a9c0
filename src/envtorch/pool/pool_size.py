"""How many replicas a pool should have: a decision without a clock, a thread or a server in it.

The signal to grow is how long callers wait for a session; the signal to shrink is that fewer replicas would
have done for a while. A pool that has just shrunk has room for every session that is in use, and some to
spare, so that a steady load never has it grow and shrink in turn.
"""

import math
from dataclasses import dataclass

from envtorch.errors import ConfigurationError
from envtorch.protocol.arguments import is_duration

__all__ = ["GROW_AFTER_S", "SHRINK_AFTER_S", "PoolLoad", "PoolSize", "SizeLimits", "next_size"]

GROW_AFTER_S = 1.0
SHRINK_AFTER_S = 60.0
FULLEST = 0.9
"""The share of sessions that may be in use after a pool has shrunk."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Between what numbers of replicas, and how soon, a pool grows and shrinks. Times are seconds."""

    least: int
    most: int
    grow_after_s: float = GROW_AFTER_S
    """How long a caller waits for a session before replicas are added."""

    shrink_after_s: float = SHRINK_AFTER_S
    """How long fewer replicas must have done before some leave; also the pause between two times."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ConfigurationError(
                f"replicas={(self.least, self.most)!r}: the least and the most, with one at least"
            )
        for name in ("grow_after_s", "shrink_after_s"):
            if not is_duration(getattr(self, name)):
                raise ConfigurationError(f"{name}={getattr(self, name)!r}: seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """What a pool has, and what is wanted of it."""

    starting: int
    """Replicas that will serve, and do not yet."""

    sessions_per_replica: int
    busy: int
    """Sessions in use, those on replicas that leave included."""

    waiting: int
    longest_wait_s: float


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many replicas there should be, and what was seen since fewer would do."""

    replicas: int
    calm_since: float | None = None
    most_busy: int = 0
    """The most sessions in use since then."""


def next_size(size: PoolSize, load: PoolLoad, limits: SizeLimits, now: float) -> PoolSize:
    """The size from now on. It grows to twice what it was, and shrinks to half of it, at most."""
    each = load.sessions_per_replica
    missing = load.waiting - load.starting * each
    if missing > 0 and load.longest_wait_s >= limits.grow_after_s:
        added = min(math.ceil(missing / each), size.replicas)
        return PoolSize(min(size.replicas + added, limits.most))
    if load.waiting or load.starting or _enough_for(load.busy, each, limits) >= size.replicas:
        return PoolSize(size.replicas)
    since = now if size.calm_since is None else size.calm_since
    most_busy = max(size.most_busy, load.busy)
    if now - since < limits.shrink_after_s:
        return PoolSize(size.replicas, since, most_busy)
    smaller = max(_enough_for(most_busy, each, limits), math.ceil(size.replicas / 2))
    return PoolSize(min(smaller, size.replicas))


def _enough_for(busy: int, each: int, limits: SizeLimits) -> int:
    """How many replicas hold these sessions, and have some to spare."""
    return min(max(math.ceil(busy / (each * FULLEST)), limits.least), limits.most)
