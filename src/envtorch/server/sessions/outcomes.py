"""What a request came to, or will: what a session's ledger keeps."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from envtorch.errors import EnvTorchError
from envtorch.protocol.wire import Reply

__all__ = ["Outcome", "Settled", "SharedOutcome", "as_future", "is_pending", "look_at", "settle"]


class Outcome(Protocol):
    """What a request came to, or will: a future, or something that is over and knows its reply."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> Any: ...


class _Over:
    """An outcome that is there."""

    __slots__ = ()

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False


class Settled(_Over):
    """A request that was answered as soon as it was asked."""

    __slots__ = ("error", "reply")

    def __init__(self, reply: Reply | None, error: EnvTorchError | None = None) -> None:
        """One of the two."""
        self.reply, self.error = reply, error

    def exception(self) -> EnvTorchError | None:
        return self.error

    def result(self) -> Reply | None:
        return self.reply


class SharedOutcome(_Over, ABC):
    """What a request came to that was asked of several sessions at once: each has a share of it."""

    __slots__ = ()

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        raise TypeError("it is the outcome of several sessions: ask for the share of one")

    @abstractmethod
    def share_of(self, session_id: str) -> Reply:
        """One session's reply."""


def is_pending(outcome: Outcome) -> bool:
    return not outcome.done()


def settle(
    outcome: "asyncio.Future[Any]",
    tell: Callable[[Outcome], None] | None,
    reply: Any,
    error: BaseException | None,
) -> None:
    """Let a future come to what a request came to, and tell somebody at once: the callbacks of a future wait
    for the next turn of the loop."""
    if error is None:
        outcome.set_result(reply)
    else:
        outcome.set_exception(error)
        outcome.exception()  # it may never be asked for again
    if tell is not None:
        tell(outcome)


def as_future(outcome: Outcome) -> "asyncio.Future[Any]":
    """An outcome, for whoever wants to await it."""
    if isinstance(outcome, asyncio.Future):
        return outcome
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    settle(future, None, outcome.result(), outcome.exception())
    return future


def look_at(task: "asyncio.Task[Any]") -> None:
    """A reply may be kept for a caller who never comes back; asyncio need not complain of that."""
    if not task.cancelled():
        task.exception()
