"""Channels of a socket here whose sessions live with a neighbour: requests go there, replies come back.

Towards the neighbour this is a client like any other, on the same extended wire, over its private socket. So
whatever holds for a session and its socket holds here: a request is taken once, a socket that goes leaves the
session detached, and whoever attaches next takes it over.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from envtorch.errors import EnvTorchError, ProtocolError
from envtorch.protocol.extended import Message, error_reply, read_frame, write_frame
from envtorch.protocol.formats import Format
from envtorch.protocol.wire import Reply
from envtorch.server.doors.extended_wire import TAKEN_OVER
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.remote_sessions import PeerSession

__all__ = ["Channels"]

Dial = Callable[[int], Awaitable[ClientConnection]]
Receiver = Callable[[Message], None]
Room = Callable[[], Awaitable[None]]
"""Waits while the socket here has too much to send, and no longer than it lasts."""
Gone = Callable[[], EnvTorchError]
"""What to say of a session whose worker does not answer any more."""


class Expected(NamedTuple):
    """Who waits for a reply, and what to call when it has come, or when the connection has ended."""

    receiver: Receiver
    settled: Callable[[], None]


class PeerLink:
    """A connection to one neighbour, for the channels of one socket."""

    def __init__(
        self,
        connection: ClientConnection,
        format: Format,
        sessions: Sessions,
        send: Receiver,
        room: Room,
        gone: Gone,
        ended: "Callable[[PeerLink, bool], None]",
    ) -> None:
        self._connection = connection
        self._format = format
        self._sessions = sessions
        self._send = send
        self._room = room
        self._gone = gone
        self._ended = ended
        self._outbox: list[Message] = []
        self._wake = asyncio.Event()
        self._closing = self._has_ended = False
        self._expected: dict[tuple[int, int], deque[Expected]] = {}
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._write())]

    def forward(self, message: Message, settled: Callable[[], None]) -> None:
        self._request(message, Expected(self._send, settled))

    def ask(self, message: Message) -> "asyncio.Future[Message]":
        """Send a request. Its reply; an error when the connection ends before it."""
        answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def resolve(reply: Message) -> None:
            if not answered.done():
                answered.set_result(reply)

        self._request(message, Expected(resolve, lambda: None))
        return answered

    def _request(self, message: Message, expected: Expected) -> None:
        """While it is under way the server is busy with it, and does not shut down before the answer."""
        assert message.id is not None
        if self._has_ended:
            raise self._gone()
        self._sessions.meter.busy(+1)
        self._expected.setdefault((message.ch, message.id), deque()).append(expected)
        self._outbox.append(message)
        self._wake.set()

    def close(self, last: Sequence[Message] = ()) -> None:
        """Say what there is left to say, with these `last` requests, and hang up."""
        if not self._has_ended:
            for message in last:
                self.forward(message, lambda: None)
        self._closing = True
        self._wake.set()

    async def _write(self) -> None:
        with suppress(ConnectionClosed):  # the reader deals with that
            while not (self._closing and not self._outbox):
                await self._wake.wait()
                self._wake.clear()
                batch, self._outbox = self._outbox, []
                if batch:
                    frame = write_frame(batch, self._format)
                    await self._connection.send(frame, text=not self._format.is_binary)
            await self._connection.close()

    async def _read(self) -> None:
        try:
            while True:
                for message in read_frame(await self._connection.recv(decode=False), self._format):
                    self._arrived(message)
                await self._room()
        except ConnectionClosed:
            pass
        finally:
            self._end()

    def _arrived(self, message: Message) -> None:
        if message.id is None:
            return  # the neighbour is draining; so is this worker, and says so itself
        key = (message.ch, message.id)
        waiting = self._expected.get(key)
        if not waiting:
            return
        expected = waiting.popleft()
        if not waiting:
            del self._expected[key]
        self._sessions.meter.busy(-1)
        expected.settled()
        expected.receiver(message)

    def _end(self) -> None:
        """Tell whoever still waits. Not the socket's client when it has hung up, or when another socket took
        the session, where the requests run on."""
        self._has_ended = True
        taken_over = self._connection.close_code == TAKEN_OVER
        self._tasks[1].cancel()
        self._ended(self, taken_over)
        waiting, self._expected = self._expected, {}
        for (channel, id), every in waiting.items():
            lost = Message.of(error_reply(self._gone(), self._format), id=id, ch=channel)
            for receiver, settled in every:
                self._sessions.meter.busy(-1)
                settled()
                if receiver is not self._send or not (taken_over or self._closing):
                    receiver(lost)


class Channels:
    """The channels of one socket, by the peers that hold their sessions."""

    def __init__(
        self,
        format: Format,
        sessions: Sessions,
        dial: Dial,
        gone: Gone,
        send: Receiver,
        room: Room,
        lost: Callable[[], None],
    ) -> None:
        self.held: dict[int, PeerSession] = {}
        self._format = format
        self._sessions = sessions
        self._dial = dial
        self._gone = gone
        self._send = send
        self._room = room
        self._lost = lost
        self._links: dict[int, asyncio.Task[PeerLink]] = {}
        self._asked: dict[int, tuple[PeerLink, Sequence[Message]]] = {}
        """Channels whose sessions were asked for, each with every `close` that came meanwhile."""
        self._closed = False

    async def take_up(self, worker: int, message: Message, closes: Sequence[Message]) -> Reply:
        link = await self._link(worker)
        if self.held.get(message.ch, link) is not link:
            raise ProtocolError(
                f"channel {message.ch} has a session already: close it, or use another channel"
            )
        if self._closed and not closes:
            link.close()
            raise self._gone()
        coming = link.ask(message)
        if self._closed:
            link.close(closes)
        self._asked[message.ch] = (link, closes)
        try:
            answer = await coming
        finally:
            del self._asked[message.ch]
        if answer.type == "session" and not self._closed:
            self.held[message.ch] = link
        return Reply(answer.type, bytes(answer.data), self._format)

    async def _link(self, worker: int) -> PeerLink:
        """The link to a neighbour, one for all channels; dialled by whoever needs it first."""
        known = self._links.get(worker)
        if known is None:
            known = self._links[worker] = asyncio.get_running_loop().create_task(self._connect(worker))
        try:
            return await asyncio.shield(known)
        except EnvTorchError:
            self._links.pop(worker, None)
            raise

    async def _connect(self, worker: int) -> PeerLink:
        try:
            connection = await self._dial(worker)
        except (OSError, TimeoutError, ConnectionClosed) as error:
            raise self._gone() from error
        return PeerLink(
            connection, self._format, self._sessions, self._send, self._room, self._gone, self._ended
        )

    def _ended(self, link: PeerLink, taken_over: bool) -> None:
        self.held = {channel: held for channel, held in self.held.items() if held is not link}
        for worker, task in list(self._links.items()):
            if task.done() and not task.cancelled() and task.exception() is None and task.result() is link:
                del self._links[worker]
        if taken_over and not self._closed:
            self._lost()

    def close(self) -> None:
        self._closed = True
        self.held.clear()
        for link, closes in self._asked.values():
            link.close(closes)
        for task in self._links.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
