"""Who may have a session, and where: placement and waiting, with no thread, clock or server in it.

The caller holds a lock around every call. A waiter is a future, which a thread waits for and a
coroutine awaits: one queue, first come first served, for both.
"""

import copy
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from envtorch.errors import CapacityReached, EnvTorchError

__all__ = ["Batch", "Replica", "Roster", "Ticket"]

MOST_OUTGROWN = 8
"""How many entries for each replica the ranking may hold before it is made anew."""


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
    is_retiring: bool = False
    """It serves the sessions it has, and leaves when they have ended."""

    @property
    def free(self) -> int:
        takes_sessions = self.is_alive and not self.is_doubted and not self.is_retiring
        return self.capacity - self.busy if takes_sessions else 0

    @property
    def may_leave(self) -> bool:
        """Whether it is to leave, and none of its sessions is in use."""
        return self.is_retiring and not self.busy


@dataclass(eq=False, slots=True)
class Batch:
    """Callers who ask for sessions together, as the episodes of one `run` do."""

    outage_s: float = 0.0
    """How long no server may be there, and none be started, before they are told."""
    ended: EnvTorchError | None = None
    """Why they get no session any more."""


@dataclass(eq=False, slots=True)
class Ticket:
    """Somebody's turn: granted with a replica, or ended with an error."""

    number: int
    asked_at: float = 0.0
    batch: Batch = field(default_factory=Batch)
    granted: "Future[Replica]" = field(default_factory=Future)


class Roster:
    """The replicas that are ready, and those who wait for one."""

    def __init__(self, *, max_waiting: int | None = None) -> None:
        self._max_waiting = max_waiting
        self._numbers = itertools.count()
        self._replicas: dict[Replica, None] = {}
        self._by_room: list[tuple[int, int, int, Replica]] = []
        """A heap, the replica with the most room first. An entry that its replica has outgrown is passed
        over when it comes up."""
        self._waiting: deque[Ticket] = deque()
        self._closed: EnvTorchError | None = None
        self._refused: EnvTorchError | None = None
        self._refused_since = 0.0

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return tuple(self._replicas)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting_since(self) -> float | None:
        """When the one who waits longest has asked; None when nobody waits."""
        return min((ticket.asked_at for ticket in self._waiting), default=None)

    def join(self, replica: Replica) -> None:
        """A server became ready."""
        self._replicas[replica] = None
        self._refused = None
        self._rank(replica)
        self._grant()

    def leave(self, replica: Replica) -> None:
        """A server is dead: nobody is sent there any more, and those who are there will notice."""
        replica.is_alive = False
        self._replicas.pop(replica, None)

    def doubt(self, replica: Replica) -> None:
        """A session broke: nobody is sent there until `trust` or `leave`."""
        replica.is_doubted = True

    def trust(self, replica: Replica) -> None:
        """The server was looked at and is well."""
        replica.is_doubted = False
        self._rank(replica)
        self._grant()

    def retire(self, replica: Replica) -> None:
        """A server is to leave: nobody is sent there any more, and those who are there may stay."""
        replica.is_retiring = True

    def keep(self, replica: Replica) -> None:
        """A server that was to leave is needed after all."""
        replica.is_retiring = False
        self._rank(replica)
        self._grant()

    def ask(self, batch: Batch | None = None, *, is_first: bool = False, now: float = 0.0) -> Ticket:
        """Ask for a session. Raises `CapacityReached` when too many wait already.

        Who `is_first` has lost a session in mid-episode, and is served before those who have not begun."""
        ticket = Ticket(next(self._numbers), now, batch or Batch())
        for error in (
            self._closed,
            ticket.batch.ended,
            self._refused if self._is_told(ticket, now) else None,
        ):
            if error is not None:
                raise _another(error)
        if is_first:
            self._waiting.appendleft(ticket)
            self._grant()
            return ticket
        if self._max_waiting is not None and not self._roomiest() and self.waiting >= self._max_waiting:
            raise CapacityReached(
                f"every session of the pool is taken and {self.waiting} others wait for one",
                waiting=self.waiting,
            )
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
        self._rank(replica)
        self._grant()

    def close(self, error: EnvTorchError) -> None:
        """Nobody gets a session any more; those who wait learn why."""
        self._closed = error
        self._fail_waiting(error, lambda _: True)

    def refuse(self, error: EnvTorchError, *, now: float = 0.0) -> None:
        """No server is there, and none can be started: nobody gets a session until one joins. Called again
        while that lasts, for those who wait some time for it."""
        if not self._replicas:
            if self._refused is None:
                self._refused_since = now
            self._refused = error
            self._fail_waiting(error, lambda ticket: self._is_told(ticket, now))

    def end(self, batch: Batch, error: EnvTorchError) -> None:
        """Those of a batch who wait learn why they wait no longer, and so do those who ask later."""
        batch.ended = error
        self._fail_waiting(error, lambda ticket: ticket.batch is batch)

    def _is_told(self, ticket: Ticket, now: float) -> bool:
        """Whether an outage, if there is one, has lasted too long for this caller."""
        return now - self._refused_since >= ticket.batch.outage_s

    def _fail_waiting(self, error: EnvTorchError, is_meant: Callable[[Ticket], bool]) -> None:
        waiting, self._waiting = self._waiting, deque()
        for ticket in waiting:
            if is_meant(ticket):
                ticket.granted.set_exception(_another(error))
            else:
                self._waiting.append(ticket)

    def _roomiest(self) -> Replica | None:
        """Where most sessions are free: load spreads, and a new replica fills up first."""
        ranked = self._by_room
        while ranked:
            room, _, _, replica = ranked[0]
            if replica in self._replicas and -room == replica.free > 0:
                return replica
            heapq.heappop(ranked)
        return None

    def _rank(self, replica: Replica) -> None:
        """Note how much room a replica has now."""
        if replica.free > 0:
            heapq.heappush(self._by_room, (-replica.free, replica.slot, next(self._numbers), replica))
        if len(self._by_room) > MOST_OUTGROWN * (len(self._replicas) + 1):
            self._by_room = []
            for known in self._replicas:
                self._rank(known)

    def _grant(self) -> None:
        while self._waiting and (replica := self._roomiest()) is not None:
            replica.busy += 1
            self._rank(replica)
            self._waiting.popleft().granted.set_result(replica)


def _another(error: EnvTorchError) -> EnvTorchError:
    """The same error, as an object of its own: one that is raised again and again keeps every traceback."""
    made = copy.copy(error)
    made.__cause__ = error.__cause__
    return made
