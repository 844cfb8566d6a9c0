"""Who may have a session, and where: placement and waiting, with no thread, clock or server in it.

The caller holds a lock around every call. A waiter is a future, which a thread waits for and a
coroutine awaits: one queue, first come first served, for both.
"""

import itertools
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from envtorch.errors import CapacityReached, EnvTorchError

__all__ = ["Replica", "Roster", "Ticket"]


@dataclass(eq=False, slots=True)
class Replica:
    """One server that is ready. Its successor, after it died, is another object."""

    slot: int
    url: str
    capacity: int
    busy: int = 0
    is_alive: bool = True
    is_doubted: bool = False
    """A session broke here, and nobody has looked yet whether the server still lives."""

    @property
    def free(self) -> int:
        return self.capacity - self.busy if self.is_alive and not self.is_doubted else 0


@dataclass(eq=False, slots=True)
class Ticket:
    """Somebody's turn: granted with a replica, or ended with an error."""

    number: int
    granted: "Future[Replica]" = field(default_factory=Future)


class Roster:
    """The replicas that are ready, and those who wait for one."""

    def __init__(self, *, max_waiting: int | None = None) -> None:
        self._max_waiting = max_waiting
        self._numbers = itertools.count()
        self._replicas: list[Replica] = []
        self._waiting: deque[Ticket] = deque()
        self._closed: EnvTorchError | None = None

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return tuple(self._replicas)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def join(self, replica: Replica) -> None:
        """A server became ready."""
        self._replicas.append(replica)
        self._grant()

    def leave(self, replica: Replica) -> None:
        """A server is dead: nobody is sent there any more, and those who are there will notice."""
        replica.is_alive = False
        if replica in self._replicas:
            self._replicas.remove(replica)

    def doubt(self, replica: Replica) -> None:
        """A session broke: nobody is sent there until `trust` or `leave`."""
        replica.is_doubted = True

    def trust(self, replica: Replica) -> None:
        """The server was looked at and is well."""
        replica.is_doubted = False
        self._grant()

    def ask(self, *, is_first: bool = False) -> Ticket:
        """Ask for a session. Raises `CapacityReached` when too many wait already.

        Who `is_first` has lost a session in mid-episode, and is served before those who have not begun."""
        if self._closed is not None:
            raise self._closed
        if is_first:
            ticket = Ticket(next(self._numbers))
            self._waiting.appendleft(ticket)
            self._grant()
            return ticket
        if self._max_waiting is not None and not self._roomiest() and self.waiting >= self._max_waiting:
            raise CapacityReached(
                f"every session of the pool is taken and {self.waiting} others wait for one",
                waiting=self.waiting,
            )
        ticket = Ticket(next(self._numbers))
        self._waiting.append(ticket)
        self._grant()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """The caller gave up. A grant that came in the same moment goes to the next one."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        elif ticket.granted.done() and ticket.granted.exception() is None:
            self.give_back(ticket.granted.result())

    def give_back(self, replica: Replica) -> None:
        """A session ended."""
        replica.busy -= 1
        assert replica.busy >= 0, "a session was given back twice"
        self._grant()

    def close(self, error: EnvTorchError) -> None:
        """Nobody gets a session any more; those who wait learn why."""
        self._closed = error
        while self._waiting:
            self._waiting.popleft().granted.set_exception(error)

    def _roomiest(self) -> Replica | None:
        """Where most sessions are free: load spreads, and a new replica fills up first."""
        free = [replica for replica in self._replicas if replica.free > 0]
        return max(free, key=lambda replica: (replica.free, -replica.slot), default=None)

    def _grant(self) -> None:
        while self._waiting and (replica := self._roomiest()) is not None:
            replica.busy += 1
            self._waiting.popleft().granted.set_result(replica)
