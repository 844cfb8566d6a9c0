"""How long to wait between attempts."""

import random
from collections.abc import Iterable, Iterator
from itertools import repeat

__all__ = ["Backoff", "new_backoff"]


class Backoff:
    """How long to wait before the next attempt: longer each time, at random, so that clients spread."""

    def __init__(self, rolls: Iterable[float], *, first_s: float = 0.02, most_s: float = 2.0) -> None:
        self._rolls: Iterator[float] = iter(rolls)
        self._next_s = first_s
        self._most_s = most_s

    def next_s(self) -> float:
        """Seconds to wait: between half and all of a delay that doubles."""
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._most_s)
        return delay * (0.5 + next(self._rolls) / 2)


def new_backoff() -> Backoff:
    return Backoff(random.random() for _ in repeat(None))  # noqa: S311  # spreads load, keeps no secret
