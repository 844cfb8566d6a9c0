"""Room for so many sessions, given out fairly."""

import asyncio
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from envtorch.errors import CapacityReached

__all__ = ["REPLICA_MARK", "Names", "Room", "Slots"]


REPLICA_MARK = "~"
"""Ends the name of the replica in a session's id and token. A proxy routes by what is before it."""


class Names(NamedTuple):
    """What a session is found by: its id, and the token that opens it."""

    id: str
    token: str

    @classmethod
    def new(cls, token: str | None = None, replica: str | None = None) -> "Names":
        """Names that begin with the name of the replica, where it has one; a `token` of the client's own
        stays as it is."""
        prefix = f"{replica}{REPLICA_MARK}" if replica else ""
        return cls(f"{prefix}{uuid.uuid4()}", token or f"{prefix}{secrets.token_urlsafe(24)}")


class Room(Protocol):
    """Room for sessions: of this process, or of a server of several."""

    @property
    def capacity(self) -> int: ...

    @property
    def taken(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def is_full(self) -> bool: ...

    async def take(self, wait_s: float = 0.0, names: Names | None = None) -> None:
        """Take a slot for the session of these names. Raises `CapacityReached`, and `HeldByPeer`."""

    async def take_together(self, names: Sequence[Names]) -> None:
        """Take a slot for each, or none. Raises `CapacityReached`."""

    def free(self, names: Names | None = None) -> None:
        """Give a slot back."""


class Slots:
    """Counts slots. Who waits for one gets it in the order of asking; nobody overtakes."""

    def __init__(self, capacity: int, stuck: Callable[[], int] = lambda: 0) -> None:
        self.capacity = capacity
        self._stuck = stuck
        self.taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        return self.taken >= self.capacity

    async def take(self, wait_s: float = 0.0, names: Names | None = None) -> None:
        """Take a slot, waiting for one if asked to. Raises `CapacityReached` when there is none in time."""
        if not self.is_full and not self._queue:
            self.taken += 1
            return
        if wait_s <= 0:
            raise self._full()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except TimeoutError:
            self._give_up(turn)
            raise self._full() from None
        except BaseException:
            self._give_up(turn)
            raise

    async def take_together(self, names: Sequence[Names]) -> None:
        """Take so many slots, or none: `CapacityReached` when there are fewer, or others wait for them."""
        if self._queue or self.taken + len(names) > self.capacity:
            raise self._full(copies=len(names))
        self.taken += len(names)

    def _full(self, *, copies: int | None = None) -> CapacityReached:
        return CapacityReached.of(self.taken, self.capacity, self._stuck(), copies=copies)

    def free(self, names: Names | None = None) -> None:
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
