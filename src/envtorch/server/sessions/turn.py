"""Whose turn it is: one caller at a time, in the order of asking."""

import asyncio
from collections import deque

__all__ = ["Turn"]


class Turn:
    """`asyncio.Lock`, with a way to take it at once that needs no task."""

    __slots__ = ("_queue", "is_taken")

    def __init__(self) -> None:
        self.is_taken = False
        self._queue: deque[asyncio.Future[None]] | None = None

    def take_at_once(self) -> bool:
        """Take the turn if nobody has it; say whether that was so."""
        if self.is_taken:
            return False
        self.is_taken = True
        return True

    async def __aenter__(self) -> None:
        if self.take_at_once():
            return
        if self._queue is None:
            self._queue = deque()
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._queue.remove(mine)
            else:
                self.give()  # it came in the same moment
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give()

    def give(self) -> None:
        """Let the next one have it, if somebody waits."""
        while self._queue:
            next_one = self._queue.popleft()
            if not next_one.done():
                next_one.set_result(None)
                return
        self.is_taken = False
