"""How an episode ended: it finished, or it failed; each item has exactly one outcome."""

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
    SessionElsewhere,
    SessionLost,
    TimedOut,
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
    SessionElsewhere,
    SessionLost,
    InternalError,
    ConnectFailed,
    ProviderFailed,
)
"""Faults that say nothing about the policy: the episode is played again, elsewhere.

`TimedOut` and `OutOfResources` are not among them: an action that hangs or takes too much memory is the
policy's, and one that is played again until it fits would teach a policy to escape its penalties. See
`is_infrastructure` for a `TimedOut` that no server has answered.
"""


def is_infrastructure(error: BaseException) -> bool:
    """Whether an error is a fault of the servers or the network, and not of what was played.

    A call that timed out is so only where its server is at fault: there was no connection to it, or it did
    not keep the call's `timeout_s`. One that works answers `TimedOut` itself.
    """
    if isinstance(error, TimedOut):
        return error.details.get("is_connected") is False or error.details.get("is_server_late") is True
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
    retry_on: tuple[type[EnvTorchError], ...] = ()
    """Further errors after which the episode is played again."""
    lost: tuple[EnvTorchError, ...] = ()

    def again_after(self, error: Exception) -> bool:
        """Note how an attempt ended; True if there is to be another."""
        if not isinstance(error, EnvTorchError):
            return False
        if not (is_infrastructure(error) or isinstance(error, self.retry_on)):
            return False
        if len(self.lost) + 1 >= self.limit:
            return False
        self.lost = (*self.lost, error)
        return True


@dataclass(slots=True)
class Playing(Generic[ResultT]):
    """One attempt at an episode; `over` notes that it was played to its end."""

    results: list[ResultT] = field(default_factory=list)

    def over(self, result: ResultT) -> None:
        self.results.append(result)


def episode(
    item: ItemT, limit: int, retry_on: tuple[type[EnvTorchError], ...] = ()
) -> Generator[Playing[ResultT], None, Finished[ItemT, ResultT] | Failed[ItemT]]:
    """A flow that yields an attempt to be made, and another while the infrastructure loses it; the outcome.

    What an attempt raises is thrown in. An episode that was over before the error counts: a session that
    breaks while it is closed costs nothing.
    """
    attempts = Attempts(limit, retry_on)
    while True:
        playing: Playing[ResultT] = Playing()
        try:
            yield playing
        except Exception as error:  # the play is the caller's: what it raises is the outcome
            if not playing.results and not attempts.again_after(error):
                return Failed(item, error, attempts.lost)
        if playing.results:
            return Finished(item, playing.results[0], attempts.lost)
