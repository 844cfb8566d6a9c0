"""Two ways a WebSocket reaches a conversation: through ASGI, or straight from the wire.

A `Conversation` is what is said on a socket; a `Line` is the socket. Conversations never wait: they are given
a frame, and send when they have something to say. So the same ones run on any server (`AsgiLine`), and on
ours, where frames come straight from picows and no task stands between them (`fast.FastLine`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

__all__ = ["EXTENSION", "AsgiLine", "Conversation", "Line", "accept"]

EXTENSION = "envtorch.line"
"""The ASGI extension by which our server offers the socket itself."""

UNSENT_LIMIT = 64
"""How many frames may wait to be sent before no more are read."""


class Conversation(Protocol):
    """What is said on a socket, from its first frame to its last."""

    def take(self, frame: bytes) -> None:
        """A frame has come in. Whether the peer called it text or binary, its bytes say what it is."""


class Line(Protocol):
    """A WebSocket that has been accepted."""

    max_message_bytes: int | None
    """The largest message that is read from it; None where that is not known."""

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        """Send a frame, soon; nobody is told when the peer is gone."""

    def close(self, code: int = 1000) -> None:
        """Say goodbye, after what was sent before."""

    def pause(self) -> None:
        """Read no more for now: what was read waits to be answered."""

    def resume(self) -> None:
        """Read on."""

    async def converse(self, conversation: Conversation) -> None:
        """Hand every frame to the conversation, until the socket ends."""


async def accept(websocket: WebSocket, subprotocol: str | None = None) -> Line:
    """Accept a socket; the line to it is the fastest one that the server has."""
    offer: Callable[[WebSocket, str | None], Awaitable[Line | None]] | None
    offer = websocket.scope.get("extensions", {}).get(EXTENSION, {}).get("take")
    line = await offer(websocket, subprotocol) if offer is not None else None
    if line is not None:
        return line
    await websocket.accept(subprotocol=subprotocol)
    return AsgiLine(websocket)


class AsgiLine:
    """A socket behind ASGI's `receive` and `send`."""

    max_message_bytes: int | None = None

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._outbox: list[tuple[bytes, bool]] = []
        self._closing: int | None = None
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._paused = False

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        self._outbox.append((frame, binary))
        self._wake.set()
        if len(self._outbox) >= UNSENT_LIMIT:
            self._may_read.clear()

    def close(self, code: int = 1000) -> None:
        self._closing = code
        self._wake.set()

    def pause(self) -> None:
        self._paused = True
        self._may_read.clear()

    def resume(self) -> None:
        self._paused = False
        self._may_read.set()

    async def converse(self, conversation: Conversation) -> None:
        writer = asyncio.get_running_loop().create_task(self._write())
        try:
            while True:
                await self._may_read.wait()
                conversation.take(await self._receive())
        except WebSocketDisconnect:
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
                    await self._send(frame, binary)
                if self._closing is not None and not self._outbox:
                    await self._websocket.close(self._closing)
                    return
                if not self._paused and not self._outbox:
                    self._may_read.set()

    async def _send(self, frame: bytes, binary: bool) -> None:
        if binary:
            await self._websocket.send_bytes(frame)
        else:
            await self._websocket.send_text(frame.decode())
