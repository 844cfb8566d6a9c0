"""Something that is built ahead of need, by a thread of its own, for the next caller.

Most of the time it takes to start a sandbox the kernel spends on namespaces, mounts and control groups. A
policy that has been used twice is likely to be used again, and so is a sandbox that has been forked: one
more of its kind is then made while nothing waits for it, and never more than one.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

from .driver import Block, Flow

__all__ = ["Prebuilt"]

T = TypeVar("T")


class Prebuilt(Generic[T]):
    """Room for one thing that was built ahead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Future[T] | None = None
        self._orders = 0
        self._closed = False

    def order(self, builder: Executor, build: Callable[[], T], *, least: int = 1) -> None:
        """Have one built, unless there is one. Nothing is done before the `least`-th order."""
        with self._lock:
            self._orders += 1
            if self._closed or self._waiting is not None or self._orders < least:
                return
            with contextlib.suppress(RuntimeError):  # the owner is shutting down
                self._waiting = builder.submit(build)

    def take(self) -> Flow[T | None]:
        """The one that was built, once it is finished; None if there is none, or it could not be built."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        if not waiting.done():
            yield Block(lambda: _await_end(waiting))
        if waiting.cancelled() or waiting.exception() is not None:
            return None  # the caller builds one itself, and learns what is wrong
        return waiting.result()

    def close(self) -> Flow[T | None]:
        """The last one, for the caller to end. No other will be made."""
        with self._lock:
            self._closed = True
        return (yield from self.take())


def _await_end(waiting: "Future[T]") -> None:
    with contextlib.suppress(BaseException):
        waiting.result()
