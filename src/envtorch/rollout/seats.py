"""How many sessions may be open at once."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Seats"]


class Seats:
    """Grants several seats at once, in the order of asking: two groups never wait for each other's half."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Hold `count` seats, or all there are if that is less."""
        count = min(count, self._count)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, granted))
        self._grant()
        try:
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._free += count
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            count, granted = self._waiting[0]
            if not granted.done():
                if count > self._free:
                    return
                self._free -= count
                granted.set_result(None)
            self._waiting.popleft()
