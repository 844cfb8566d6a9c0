"""The async shell around a client's flows: one socket on the running event loop."""

import asyncio
import os
import ssl
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from envtorch.client.addresses import elsewhere_of
from envtorch.client.client_options import ClientOptions
from envtorch.client.websocket_core import WebSocketCore, connect_failed
from envtorch.protocol.reconnect import Connect, Cut, Drop, Late, Move, Ping, Receive, Send, Sleep

__all__ = ["AsyncShell"]

CLOSING_S = 1.0


class AsyncShell:
    """Does what a flow asks for, over at most one socket at a time."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._elsewhere = elsewhere_of(options.base_url, options.elsewhere)
        self._connection: Connection | None = None
        self._acts: dict[type, Any] = {
            Send: self._send,
            Receive: self._receive,
            Connect: self._connect,
            Ping: self._ping,
            Sleep: lambda wanted: asyncio.sleep(wanted.seconds),
            Drop: lambda wanted: self.drop(politely=wanted.politely),
            Move: self._move,
        }

    async def act(self, wanted: Any) -> Any:
        """Do one thing that a flow yields."""
        return await self._acts[type(wanted)](wanted)

    async def drop(self, *, politely: bool = False) -> None:
        """Close the socket, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(politely=politely)

    def abort(self) -> None:
        """Close the socket now."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def for_copy(self) -> ClientOptions:
        """The options of a copy of the session: where this one is now."""
        return replace(self._options, elsewhere=self._elsewhere.for_copy())

    def release(self) -> None:
        """The session has ended: its place may be given to another."""
        self._elsewhere.release()

    def leave(self, farewell: bytes | None, *, is_binary: bool) -> None:
        """Send a last message, as far as that takes no waiting, and close the socket. From any thread."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave(farewell, is_binary=is_binary)

    async def _connect(self, wanted: Connect) -> str | None:
        self.abort()
        self._connection = await Connection.open(self._options, wanted.timeout_s, wanted.replica)
        return self._connection.subprotocol

    async def _move(self, wanted: Move) -> str:
        address = await self._elsewhere.next_address_async(wanted.timeout_s)
        self._options = replace(self._options, base_url=address)
        return address

    async def _send(self, wanted: Send) -> None:
        await self._connected().send(wanted.frame, wanted.deadline, is_binary=wanted.is_binary)

    async def _receive(self, wanted: Receive) -> bytes:
        return await self._connected().receive(wanted.deadline)

    async def _ping(self, wanted: Ping) -> None:
        await self._connected().ping(wanted.deadline)

    def _connected(self) -> "Connection":
        if self._connection is None:
            raise Cut("there is no connection")
        return self._connection


class Connection(asyncio.Protocol):
    """One WebSocket, from its handshake to its end."""

    def __init__(self, core: WebSocketCore) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_half_sent = False
        self._heard = 0
        self._lost: Exception | None = None
        self._is_over = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport

    @classmethod
    async def open(cls, options: ClientOptions, timeout_s: float, replica: str | None = None) -> "Connection":
        """Connect and shake hands. Raises `ConnectFailed` when that does not succeed in time."""
        core = WebSocketCore(options, replica)
        uri = core.uri
        context = ssl.create_default_context() if uri.secure else None
        connection = cls(core)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: connection, uri.host, uri.port, ssl=context)
                await connection._shake_hands()
        except (OSError, EOFError) as error:
            connection.abort()
            raise connect_failed(core.shown_url, error) from error
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _shake_hands(self) -> None:
        self._transport.write(self._core.start())
        while self._core.is_connecting and not self._is_over:
            await self._change()
        self._core.require_open()
        if self._core.is_connecting:
            raise self._lost or EOFError("the server closed the connection")

    @property
    def subprotocol(self) -> str | None:
        return self._core.subprotocol

    async def send(self, frame: bytes, deadline: float, *, is_binary: bool) -> None:
        """Send one message. Raises `Late`, after which nothing more can be sent."""
        if not self._is_gone:
            await self._write(self._core.encode(frame, is_binary=is_binary), deadline)

    async def ping(self, deadline: float) -> None:
        if not self._is_gone:
            await self._write(self._core.ping(), deadline)

    async def receive(self, deadline: float) -> bytes:
        """The next message. Raises `Late` or `Cut`."""
        messages = self._core.messages
        if not messages:
            heard = self._heard
            try:
                async with asyncio.timeout_at(deadline - time.monotonic() + self._loop.time()):
                    while not messages:
                        if self._is_gone:
                            raise self._core.cut(self._lost)
                        await self._change()
            except TimeoutError:
                await self._read_what_is_there()
                if not messages:
                    raise Late(heard=self._heard != heard) from None
        return messages.popleft()

    async def _read_what_is_there(self) -> None:
        """Let the loop read what has arrived, up to a whole message. A loop that was blocked until after a
        deadline runs the deadline's timer before it has read everything."""
        heard = -1
        while heard != self._heard and not self._core.messages:
            heard = self._heard
            await asyncio.sleep(0)

    async def close(self, *, politely: bool) -> None:
        try:
            if politely and not self._is_over and not self._is_half_sent:
                self._transport.write(self._core.closing())
                self._transport.close()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLOSING_S):
                        await asyncio.shield(self._ended)
        finally:
            self.abort()  # if it is not over: also for a task that is cancelled meanwhile

    def abort(self) -> None:
        transport = getattr(self, "_transport", None)  # None before there is a connection
        if transport is not None and not self._is_over:
            transport.abort()

    def leave(self, farewell: bytes | None, *, is_binary: bool) -> None:
        """Write a last message past the loop, which may be closed or another thread's, and have it close the
        socket, if it still can."""
        transport = self._transport
        is_plain = transport.get_extra_info("sslcontext") is None
        if not (self._is_gone or self._is_half_sent or transport.get_write_buffer_size()) and is_plain:
            with suppress(OSError, Cut):
                last = b"" if farewell is None else self._core.encode(farewell, is_binary=is_binary)
                os.write(transport.get_extra_info("socket").fileno(), last + self._core.closing())
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(transport.close)

    @property
    def _is_gone(self) -> bool:
        """Nothing more will arrive, and nothing sent would."""
        return self._is_over or self._core.is_closed

    async def _write(self, data: bytes, deadline: float) -> None:
        if self._is_half_sent:
            raise Cut("the connection was left in the middle of a message")
        self._transport.write(data)
        if self._may_write.is_set():
            return
        self._is_half_sent = True  # until it has left: half a message is followed by nothing
        try:
            async with asyncio.timeout_at(deadline - time.monotonic() + self._loop.time()):
                await self._may_write.wait()
        except TimeoutError:
            raise Late from None
        self._is_half_sent = False

    async def _change(self) -> None:
        """Wait until something has arrived, or the connection is over."""
        changed = self._changed = self._loop.create_future()
        try:
            await changed
        finally:
            self._changed = None

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard += len(data)
        answer = self._core.receive(data)
        if answer:
            self._transport.write(answer)
        self._notify()

    def eof_received(self) -> None:
        self._core.receive(b"")
        self._notify()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._lost = error or EOFError("the server closed the connection")
        self._may_write.set()
        if not self._ended.done():
            self._ended.set_result(None)
        self._notify()
