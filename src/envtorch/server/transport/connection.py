"""What a WebSocket is to the code that answers it, and the implementation for any ASGI server.

A `Conversation` answers the frames of a socket; a `Line` is the socket. Conversations never wait: they are
given a frame, and send when they have an answer. So the same ones run on any ASGI server (`AsgiLine`), and on
ours, where frames come straight from picows with no task in between (`picows_transport.FastLine`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

__all__ = ["EXTENSION", "STALLED_S", "UNSENT_BYTES", "AsgiLine", "Backlog", "Conversation", "Line", "accept"]

EXTENSION = "envtorch.line"
"""The ASGI extension by which our server offers the socket itself."""

UNSENT_LIMIT = 64
"""How many frames may wait to be sent before no more are read."""

UNSENT_BYTES = 4 * 1024 * 1024
"""How many bytes may wait to be sent on a socket. While there are more, none of its requests is begun."""

STALLED_S = 60.0
"""How long a peer may read nothing of what is sent to it before its socket is dropped."""


class Conversation(Protocol):
    """What is said on a socket, from its first frame to its last."""

    def take(self, frame: bytes) -> None:
        """A frame has come in. Whether the peer called it text or binary, its bytes say what it is."""


class Line(Protocol):
    """A WebSocket that has been accepted."""

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        """Send a frame, soon; nobody is told when the peer is gone."""

    def close(self, code: int = 1000) -> None:
        """Say goodbye, after what was sent before."""

    def pause(self) -> None:
        """Stop reading: what was read waits to be answered."""

    def resume(self) -> None:
        """Read on."""

    def has_room(self, go_on: Callable[[], None], *, more: int = 0) -> bool:
        """Whether another answer may be sent, besides `more` bytes that will be: `UNSENT_BYTES` or less wait.

        If not, the `go_on` that was given last is called, once, when what waited has been sent; never after
        the socket has ended.
        """

    async def converse(self, conversation: Conversation) -> None:
        """Hand every frame to the conversation, until the socket ends."""


class Backlog:
    """The requests of one socket that wait for their answers; while there are too many, none is read.

    Each request is added once and removed once, when it is answered or given up.
    """

    def __init__(self, line: Line, *, requests: int, size: int) -> None:
        self.most_requests = requests
        self._line = line
        self._most_bytes = size
        self._requests = self._bytes = 0
        self._is_paused = False

    def add(self, size: int) -> None:
        self._requests += 1
        self._bytes += size
        if not self._is_paused and self._is_full:
            self._is_paused = True
            self._line.pause()

    def remove(self, size: int) -> None:
        self._requests -= 1
        self._bytes -= size
        if self._is_paused and not self._is_full:
            self._is_paused = False
            self._line.resume()

    @property
    def _is_full(self) -> bool:
        return self._requests >= self.most_requests or self._bytes >= self._most_bytes


async def accept(
    websocket: WebSocket,
    subprotocol: str | None = None,
    *,
    max_bytes: int,
    stalled_s: float | None = STALLED_S,
) -> Line:
    """Accept a socket, on the fastest transport that the server has.

    Messages of up to `max_bytes` are meant to be answered; much larger ones are not read at all, and end the
    socket. `stalled_s` is None for a worker of this server: it reads as fast as its client does, and drops
    that client.
    """
    offer: Callable[[WebSocket, str | None, int], Awaitable[Line | None]] | None
    offer = websocket.scope.get("extensions", {}).get(EXTENSION, {}).get("take")
    line = await offer(websocket, subprotocol, max_bytes) if offer is not None else None
    if line is not None:
        return line
    await websocket.accept(subprotocol=subprotocol)
    return AsgiLine(websocket, stalled_s)


class AsgiLine:
    """A socket behind ASGI's `receive` and `send`."""

    def __init__(self, websocket: WebSocket, stalled_s: float | None) -> None:
        self._websocket = websocket
        self._stalled_s = stalled_s
        self._outbox: list[tuple[bytes, bool]] = []
        self._unsent = 0
        self._reading = asyncio.timeout(None)
        self._closing: int | None = None
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._paused = False
        self._go_on: Callable[[], None] | None = None

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        self._outbox.append((frame, binary))
        self._unsent += len(frame)
        self._wake.set()
        if self._is_congested:
            self._may_read.clear()

    def close(self, code: int = 1000) -> None:
        self._closing = code
        self._wake.set()

    def pause(self) -> None:
        self._paused = True
        self._may_read.clear()

    def resume(self) -> None:
        self._paused = False
        if not self._is_congested:
            self._may_read.set()

    def has_room(self, go_on: Callable[[], None], *, more: int = 0) -> bool:
        if self._unsent + more <= UNSENT_BYTES:
            return True
        self._go_on = go_on
        self._tell_drained()
        return False

    @property
    def _is_congested(self) -> bool:
        return len(self._outbox) >= UNSENT_LIMIT or self._unsent >= UNSENT_BYTES

    def _tell_drained(self) -> None:
        if self._go_on is not None and self._unsent == 0:
            go_on, self._go_on = self._go_on, None
            asyncio.get_running_loop().call_soon(go_on)

    async def converse(self, conversation: Conversation) -> None:
        writer = asyncio.get_running_loop().create_task(self._write())
        try:
            async with self._reading:
                while True:
                    await self._may_read.wait()
                    conversation.take(await self._receive())
        except (WebSocketDisconnect, TimeoutError):
            pass
        finally:
            writer.cancel()
            with suppress(asyncio.CancelledError):
                await writer

    async def _receive(self) -> bytes:
        message: dict[str, Any] = dict(await self._websocket.receive())
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text: str | None = message.get("text")
        return bytes(message["bytes"]) if text is None else text.encode("utf-8", "surrogatepass")

    async def _write(self) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):  # the reader learns of it too
            while True:
                await self._wake.wait()
                self._wake.clear()
                outbox, self._outbox = self._outbox, []
                for frame, binary in outbox:
                    if not await self._send_in_time(frame, binary):
                        return
                    self._unsent -= len(frame)
                if self._closing is not None and not self._outbox:
                    await self._websocket.close(self._closing)
                    return
                if not self._paused and not self._outbox:
                    self._may_read.set()
                self._tell_drained()

    async def _send_in_time(self, frame: bytes, binary: bool) -> bool:
        """Send a frame; False when the peer reads nothing, and the socket is given up."""
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._send(frame, binary)
        except TimeoutError:
            self._reading.reschedule(asyncio.get_running_loop().time())
            return False
        return True

    async def _send(self, frame: bytes, binary: bool) -> None:
        if binary:
            await self._websocket.send_bytes(frame)
        else:
            await self._websocket.send_text(frame.decode())
