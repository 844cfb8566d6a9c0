"""What is built ahead of need, by a thread of its own, for whoever asks next.

Most of the time it takes to start a sandbox the kernel spends on namespaces, mounts and control groups. A
policy that has been used twice is likely to be used again, and so is a sandbox that has been forked: one
more of its kind is then made while nobody waits, and never more than one.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

from .driver import Block, Flow

__all__ = ["Shelf"]

T = TypeVar("T")


class Shelf(Generic[T]):
    """Room for one spare."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: Future[T] | None = None
        self._orders = 0
        self._closed = False

    def order(self, builder: Executor, build: Callable[[], T], *, least: int = 1) -> None:
        """Have a spare built, unless there is one. Nothing is done before the `least`-th order."""
        with self._lock:
            self._orders += 1
            if self._closed or self._spare is not None or self._orders < least:
                return
            with contextlib.suppress(RuntimeError):  # the owner is shutting down
                self._spare = builder.submit(build)

    def take(self) -> Flow[T | None]:
        """The spare, if there is one; waits for one that is being made. None if that came to nothing."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None:
            return None
        if not spare.done():
            yield Block(lambda: _ended(spare))
        if spare.cancelled() or spare.exception() is not None:
            return None  # whoever asks builds one itself, and is told what is wrong
        return spare.result()

    def close(self) -> Flow[T | None]:
        """The last spare, for the caller to end. No other will be made."""
        with self._lock:
            self._closed = True
        return (yield from self.take())


def _ended(spare: "Future[T]") -> None:
    with contextlib.suppress(BaseException):
        spare.result()
