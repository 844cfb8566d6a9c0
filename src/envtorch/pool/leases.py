"""A client's place on a replica: how it is waited for, and how it moves when the replica is lost."""

import asyncio
import threading
import time

from envtorch.client.addresses import Elsewhere
from envtorch.errors import EnvTorchError, TimedOut
from envtorch.pool.outcomes import is_infrastructure
from envtorch.pool.replica_keeper import Keeper
from envtorch.pool.roster import Batch, Replica

__all__ = ["OUTAGE_S", "Lease", "Search", "granted", "granted_async"]


OUTAGE_S = 300.0
"""How long the episodes of a batch wait while a pool has no server and can start none."""

MOST_SERVERS = 3
"""On how many servers, one after the other, a session is tried. One that ends each server it is opened on
would otherwise go through them all, and through their successors."""


class Search:
    """One caller's search for a server that it can reach. No episode has begun: another server will do."""

    def __init__(self, timeout_s: float | None, batch: Batch | None = None) -> None:
        self.batch = batch or Batch()
        self.last_error: EnvTorchError | None = None
        """Why the server that was tried last could not be reached."""
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._unreachable: set[Replica] = set()

    @property
    def left_s(self) -> float | None:
        """How long a place may still be waited for."""
        if self._timeout_s is None or not self._unreachable:
            return self._timeout_s
        return max(0.0, self._began + self._timeout_s - time.monotonic())

    def goes_on(self, replica: Replica, error: EnvTorchError) -> bool:
        """Whether another place is to be asked for: not after `MOST_SERVERS` that failed, nor after a second
        failure on one server, which then was looked at between the two, and is well."""
        if not is_infrastructure(error) or replica in self._unreachable:
            return False
        self._unreachable.add(replica)
        self.last_error = error
        return len(self._unreachable) < MOST_SERVERS

    def timed_out(self) -> TimedOut:
        """The error for a turn that did not come in time."""
        told = f"no session was free within {self._timeout_s:g} s"
        if self.last_error is not None:
            told = f"{told}, after a server that could not be reached: {self.last_error}"
        return TimedOut(told)


def granted(keeper: Keeper, search: Search, *, is_first: bool = False) -> Replica:
    """A place on a replica, when it is this caller's turn. Raises `TimedOut`, or why there will be none."""
    ticket = keeper.ask(search.batch, is_first=is_first)
    try:
        return ticket.granted.result(search.left_s)
    except TimeoutError as error:
        if isinstance(error, EnvTorchError):
            raise  # no server could be started in time, which is another matter
        keeper.withdraw(ticket)
        raise search.timed_out() from search.last_error
    except BaseException:
        if not ticket.granted.done() or ticket.granted.exception() is None:
            keeper.withdraw(ticket)
        raise


async def granted_async(keeper: Keeper, search: Search, *, is_first: bool = False) -> Replica:
    """`granted`, awaited."""
    ticket = keeper.ask(search.batch, is_first=is_first)
    turn = asyncio.wrap_future(ticket.granted)
    try:
        done, _ = await asyncio.wait([turn], timeout=search.left_s)
    except asyncio.CancelledError:
        keeper.withdraw(ticket)
        raise
    if not done:
        keeper.withdraw(ticket)
        raise search.timed_out() from search.last_error
    return turn.result()


class Lease(Elsewhere):
    """One session's place. A session that lost its replica gives its place back and takes another, before
    those who wait to begin."""

    def __init__(self, keeper: Keeper, replica: Replica, *, is_copy: bool = False) -> None:
        """A copy, made by a fork, has no place of its own until it moves."""
        self.replica = replica
        self._keeper = keeper
        self._is_copy = is_copy
        self._has_place = not is_copy
        self._guard = threading.Lock()

    def next_address(self, timeout_s: float) -> str:
        self._leave()
        return self._take(granted(self._keeper, Search(timeout_s), is_first=True))

    async def next_address_async(self, timeout_s: float) -> str:
        self._leave()
        return self._take(await granted_async(self._keeper, Search(timeout_s), is_first=True))

    def for_copy(self) -> "Lease":
        return Lease(self._keeper, self.replica, is_copy=True)

    def release(self) -> None:
        """The client's session has ended. The client itself may open another: its place stays until `end`."""
        if self._is_copy:
            self.end()

    def end(self) -> None:
        """Give the place back; again and again, if need be."""
        with self._guard:
            had_place, self._has_place = self._has_place, False
        if had_place:
            self._keeper.give_back(self.replica)

    def suspect(self) -> None:
        """A session broke at this place: have its server looked at."""
        self._keeper.suspect(self.replica)

    def _leave(self) -> None:
        self.suspect()
        self.end()

    def _take(self, replica: Replica) -> str:
        self.replica, self._has_place = replica, True
        return replica.url
