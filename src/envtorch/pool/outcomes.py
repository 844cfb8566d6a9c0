"""What became of an episode: it finished, or it failed; each item has exactly one outcome."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from envtorch.errors import (
    CapacityReached,
    ConnectFailed,
    Draining,
    EnvTorchError,
    InternalError,
    ProviderFailed,
    SessionLost,
)

__all__ = [
    "INFRASTRUCTURE",
    "Attempts",
    "Failed",
    "Finished",
    "Outcome",
    "Playing",
    "episode",
    "is_infrastructure",
]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

INFRASTRUCTURE = (
    CapacityReached,
    Draining,
    SessionLost,
    InternalError,
    ConnectFailed,
    ProviderFailed,
)
"""Faults that say nothing about the agent: the episode is played again, elsewhere.

A step that timed out or ran out of resources is not among them: else an agent would be spared the
consequences of its own actions."""


def is_infrastructure(error: BaseException) -> bool:
    """Whether an episode that ended so should be played again."""
    return isinstance(error, INFRASTRUCTURE)


@dataclass(frozen=True, slots=True)
class Finished(Generic[ItemT, ResultT]):
    """The episode was played to its end."""

    item: ItemT
    value: ResultT
    lost: tuple[EnvTorchError, ...] = ()
    """Why it had to be played again; empty when the first attempt was the last."""


@dataclass(frozen=True, slots=True)
class Failed(Generic[ItemT]):
    """The episode was not played to its end: too many attempts were lost, or it is its own fault."""

    item: ItemT
    error: Exception
    lost: tuple[EnvTorchError, ...] = ()


Outcome = Finished[ItemT, ResultT] | Failed[ItemT]


@dataclass(slots=True)
class Attempts:
    """How often one episode was tried, and whether it should be tried again."""

    limit: int
    lost: tuple[EnvTorchError, ...] = ()

    def again_after(self, error: Exception) -> bool:
        """Note how an attempt ended; True if there is to be another."""
        if not isinstance(error, EnvTorchError) or not is_infrastructure(error):
            return False
        if len(self.lost) + 1 >= self.limit:
            return False
        self.lost = (*self.lost, error)
        return True


@dataclass(slots=True)
class Playing(Generic[ResultT]):
    """One attempt at an episode: whoever makes it says here when the episode is over."""

    results: list[ResultT] = field(default_factory=list)

    def over(self, result: ResultT) -> None:
        self.results.append(result)


def episode(
    item: ItemT, limit: int
) -> Generator[Playing[ResultT], None, Finished[ItemT, ResultT] | Failed[ItemT]]:
    """A flow: yields an attempt to be made, again while the infrastructure loses it; the outcome.

    What an attempt raises is thrown in. An episode that was over before counts all the same: a session
    that breaks while it is closed costs nothing.
    """
    attempts = Attempts(limit)
    while True:
        playing: Playing[ResultT] = Playing()
        try:
            yield playing
        except Exception as error:  # the play is the caller's: what it raises is the outcome
            if not playing.results and not attempts.again_after(error):
                return Failed(item, error, attempts.lost)
        if playing.results:
            return Finished(item, playing.results[0], attempts.lost)
