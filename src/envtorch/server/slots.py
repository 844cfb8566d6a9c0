"""Room for so many sessions, given out fairly."""

import asyncio
from collections import deque

from envtorch.errors import CapacityReached

__all__ = ["Slots"]


class Slots:
    """Counts slots. Who waits for one gets it in the order of asking; nobody overtakes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        return self.taken >= self.capacity

    async def take(self, wait_s: float = 0.0) -> None:
        """Take a slot, waiting for one if asked to. Raises `CapacityReached` when there is none in time."""
        if not self.is_full and not self._queue:
            self.taken += 1
            return
        if wait_s <= 0:
            raise CapacityReached.of(self.taken, self.capacity)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except TimeoutError:
            self._give_up(turn)
            raise CapacityReached.of(self.taken, self.capacity) from None
        except BaseException:
            self._give_up(turn)
            raise

    def take_at_once(self, count: int) -> None:
        """Take that many slots, or none: `CapacityReached` when there are fewer, or others wait for them."""
        if self._queue or self.taken + count > self.capacity:
            raise CapacityReached.of(self.taken, self.capacity)
        self.taken += count

    def free(self) -> None:
        """Give a slot back; the first in the queue has it at once."""
        self.taken -= 1
        while self._queue and not self.is_full:
            turn = self._queue.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def _give_up(self, turn: "asyncio.Future[None]") -> None:
        if turn.done() and not turn.cancelled():
            self.free()  # it came in the same moment; the next in the queue shall have it
        elif turn in self._queue:
            self._queue.remove(turn)
