"""Results of calls that ran on threads, on their way to the event loop."""

import asyncio
from collections import deque
from contextlib import suppress
from weakref import WeakKeyDictionary, ref

from envtorch.protocol.host import CallResult
from envtorch.server.runners.runner import Done

__all__ = ["ThreadResults"]


class ThreadResults:
    """Delivers to one event loop, which is woken once for all results that are ready."""

    _of_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadResults]" = WeakKeyDictionary()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "ThreadResults":
        return cls._of_loop.setdefault(loop, cls(loop))

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._ready: deque[tuple[Done, CallResult]] = deque()
        self._will_deliver = False

    def post(self, done: Done, answered: CallResult) -> None:
        """Have `done` called on the loop. Called from any thread."""
        self._ready.append((done, answered))
        if not self._will_deliver:  # two threads may both find it so: then the loop is woken twice
            self._will_deliver = True
            loop = self._loop()
            if loop is not None:
                with suppress(RuntimeError):  # the loop is closed, and nobody waits
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._will_deliver = False  # before looking: what comes after the last look wakes the loop again
        while self._ready:
            done, answered = self._ready.popleft()
            done(*answered)
