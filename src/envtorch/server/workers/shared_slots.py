"""A worker's view of the register: slots of the whole server, and where sessions live."""

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Sequence

from envtorch.errors import CapacityReached, Draining, SessionLost
from envtorch.server.sessions.remote_sessions import HeldByPeer
from envtorch.server.sessions.slots import Names
from envtorch.server.workers.shared_counters import Page
from envtorch.server.workers.worker_messages import (
    Find,
    Found,
    Free,
    Full,
    Granted,
    HeldElsewhere,
    MessageLine,
    Take,
    TakeTogether,
    Withdraw,
    WorkerReady,
)

__all__ = ["SharedSlots"]

logger = logging.getLogger(__name__)

Answer = Granted | Full | HeldElsewhere | Found


class SharedSlots:
    """`Room` for sessions, of which the master keeps count for all workers."""

    def __init__(self, worker: int, capacity: int, page: Page) -> None:
        self.capacity = capacity
        self.waiting = 0
        """How many callers of this worker wait for a slot."""
        self._worker = worker
        self._page = page
        self._calls = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._line: MessageLine | None = None
        self._is_open = asyncio.Event()
        """A request that a peer forwards while this worker still starts waits for the line to the master."""
        self._reading: asyncio.Task[None] | None = None

    async def open(self, end: socket.socket, ready: WorkerReady) -> None:
        """Take up the line to the master, and say that the worker serves."""
        self._line = await MessageLine.over(end)
        self._reading = asyncio.get_running_loop().create_task(self._read(self._line))
        self._line.send(ready)
        self._is_open.set()

    @property
    def taken(self) -> int:
        return self._page.taken

    @property
    def is_full(self) -> bool:
        return self.taken >= self.capacity

    async def take(self, wait_s: float = 0.0, names: Names | None = None) -> None:
        assert names is not None, "a slot of a server of several workers is taken under a name"
        call = next(self._calls)
        self.waiting += 1
        try:
            answer = await self._ask(Take(call, names, wait_s), [names])
        finally:
            self.waiting -= 1
        _require_granted(answer)

    async def take_together(self, names: Sequence[Names]) -> None:
        call = next(self._calls)
        answer = await self._ask(TakeTogether(call, list(names)), names)
        _require_granted(answer, copies=len(names))

    def free(self, names: Names | None = None) -> None:
        assert names is not None, "a slot of a server of several workers is given back by its name"
        self._send(Free(names))

    async def find(self, name: str) -> int | None:
        """The other worker that holds a session. Raises `SessionLost` when it was lost with its worker."""
        found = await self._ask(Find(next(self._calls), name), ())
        assert isinstance(found, Found)
        if found.worker is None and self._page.is_stopping:
            raise Draining("the server is shutting down")
        if found.lost is not None:
            raise SessionLost(f"the session is gone: {found.lost}")
        return found.worker if found.worker != self._worker else None

    async def _ask(self, note: Take | TakeTogether | Find, names: Sequence[Names]) -> Answer:
        await self._is_open.wait()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[note.call] = answer
        self._send(note)
        try:
            return await answer
        except asyncio.CancelledError:
            if names:
                self._send(Withdraw(note.call, list(names)))
            raise
        finally:
            del self._asked[note.call]

    def _send(self, note: Take | TakeTogether | Find | Withdraw | Free) -> None:
        assert self._line is not None, "the line to the master is not open yet"
        self._line.send(note)

    async def _read(self, line: MessageLine) -> None:
        async for note in line.notes():
            assert isinstance(note, Granted | Full | HeldElsewhere | Found), note
            answer = self._asked.get(note.call)
            if answer is not None and not answer.done():
                answer.set_result(note)
        logger.critical("the master is gone, and this worker ends with it")
        os._exit(1)


def _require_granted(answer: Answer, *, copies: int | None = None) -> None:
    match answer:
        case Full(taken=taken, capacity=capacity):
            raise CapacityReached.of(taken, capacity, copies=copies)
        case HeldElsewhere(worker=worker):
            raise HeldByPeer(worker)
