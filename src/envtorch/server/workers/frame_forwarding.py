"""A socket here, whom it talks to with a neighbour: every frame there, every reply back."""

import asyncio
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from envtorch.server.sessions.registry import Sessions
from envtorch.server.transport.connection import Line

__all__ = ["SocketTunnel"]

UNSENT_LIMIT = 64
"""How many frames may wait for the neighbour before no more are read."""


class SocketTunnel:
    """The conversation that a neighbour has on a socket of this worker."""

    def __init__(
        self, far: ClientConnection, line: Line, sessions: Sessions, *, is_answered: bool = True
    ) -> None:
        """`is_answered` where every frame has one reply, for which a server that shuts down waits."""
        self._far = far
        self._line = line
        self._sessions = sessions
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._drained = asyncio.Event()
        self._is_over = False
        self._is_answered = is_answered
        self._unanswered = 0

    async def serve(self) -> None:
        """Until either side ends; then the other ends too."""
        loop = asyncio.get_running_loop()
        there, back = loop.create_task(self._there()), loop.create_task(self._back())
        try:
            await self._line.converse(self)
        finally:
            self._is_over = True
            self._drained.set()
            there.cancel()
            with suppress(asyncio.CancelledError):
                await there
            await self._far.close()
            await back

    def take(self, frame: bytes) -> None:
        self._queue.put_nowait(frame)
        if self._is_answered:
            self._unanswered += 1
            self._sessions.meter.busy(+1)
        if self._queue.qsize() >= UNSENT_LIMIT:
            self._line.pause()

    async def _there(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._far.send(await self._queue.get(), text=True)
                if self._queue.empty():
                    self._line.resume()

    async def _back(self) -> None:
        try:
            with suppress(ConnectionClosed):
                while True:
                    self._line.send(await self._far.recv(decode=False))
                    self._answered(min(1, self._unanswered))
                    await self._room()
        finally:
            self._is_answered = False  # a frame that is still read goes nowhere
            self._answered(self._unanswered)
            self._line.close()

    async def _room(self) -> None:
        """Wait while the socket here has too much to send; meanwhile nothing is read from the neighbour."""
        while not (self._is_over or self._line.has_room(self._drained.set)):
            self._drained.clear()
            await self._drained.wait()

    def _answered(self, count: int) -> None:
        self._unanswered -= count
        self._sessions.meter.busy(-count)
