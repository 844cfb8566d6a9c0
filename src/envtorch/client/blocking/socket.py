"""The blocking shell around a client's flows: one socket, no thread and no event loop.

Deadlines are Python's own socket timeouts, which wait with `poll`.
"""

import socket
import ssl
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from envtorch.client.addresses import elsewhere_of
from envtorch.client.client_options import ClientOptions
from envtorch.client.websocket_core import WebSocketCore, connect_failed
from envtorch.protocol.reconnect import Connect, Cut, Drop, Late, Move, Ping, Receive, Send, Sleep

__all__ = ["BlockingShell"]

CHUNK_BYTES = 64 * 1024
CLOSING_S = 1.0
HEADERS = (("EnvTorch-Pings", "unanswered"),)
"""Between two calls nobody reads from the socket, so the server's pings have no answer."""


class BlockingShell:
    """Does what a flow asks for, over at most one socket at a time. For one thread at a time."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._elsewhere = elsewhere_of(options.base_url, options.elsewhere)
        self._connection: Connection | None = None
        self._acts: dict[type, Any] = {
            Send: self._send,
            Receive: self._receive,
            Connect: self._connect,
            Ping: self._ping,
            Sleep: lambda wanted: time.sleep(wanted.seconds),
            Drop: lambda wanted: self.drop(politely=wanted.politely),
            Move: self._move,
        }

    def act(self, wanted: Any) -> Any:
        """Do one thing that a flow yields."""
        return self._acts[type(wanted)](wanted)

    def drop(self, *, politely: bool = False) -> None:
        """Close the socket, if there is one."""
        if self._connection is not None:
            self._connection.close(politely=politely)
            self._connection = None  # now: it may be interrupted before, and repeated

    def for_copy(self) -> ClientOptions:
        """The options of a copy of the session: where this one is now."""
        return replace(self._options, elsewhere=self._elsewhere.for_copy())

    def release(self) -> None:
        """The session has ended: its place may be given to another."""
        self._elsewhere.release()

    def leave(self, farewell: bytes | None, *, is_binary: bool) -> None:
        """Send a last message, as far as that takes no waiting, and close the socket."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave(farewell, is_binary=is_binary)

    def forget(self) -> None:
        """Close this process's descriptor of a socket that belongs to another process."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.forget()

    def _connect(self, wanted: Connect) -> str | None:
        self.drop()
        deadline = time.monotonic() + wanted.timeout_s
        self._connection = Connection.open(self._options, deadline, wanted.replica)
        return self._connection.subprotocol

    def _move(self, wanted: Move) -> str:
        address = self._elsewhere.next_address(wanted.timeout_s)
        self._options = replace(self._options, base_url=address)
        return address

    def _send(self, wanted: Send) -> None:
        self._connected().send(wanted.frame, wanted.deadline, is_binary=wanted.is_binary)

    def _receive(self, wanted: Receive) -> bytes:
        return self._connected().receive(wanted.deadline)

    def _ping(self, wanted: Ping) -> None:
        self._connected().ping(wanted.deadline)

    def _connected(self) -> "Connection":
        if self._connection is None:
            raise Cut("there is no connection")
        return self._connection


class Connection:
    """One open WebSocket."""

    def __init__(self, sock: socket.socket, core: WebSocketCore) -> None:
        self._socket = sock
        self._core = core
        self._can_write = self._can_read = True
        self._failure: OSError | None = None
        """Why the last write failed: what the server sent before is still to be read."""

    @classmethod
    def open(cls, options: ClientOptions, deadline: float, replica: str | None = None) -> "Connection":
        """Connect and shake hands. Raises `ConnectFailed` when that does not succeed in time."""
        core = WebSocketCore(options, replica, HEADERS)
        try:
            sock = _open(core, deadline)
        except OSError as error:
            raise connect_failed(core.shown_url, error) from error
        connection = cls(sock, core)
        try:
            connection._write(core.start(), deadline)
            while core.is_connecting:
                connection._read(deadline)
            core.require_open()
        except (OSError, Late) as error:
            sock.close()
            late = TimeoutError("the server did not answer in time")
            raise connect_failed(core.shown_url, late if isinstance(error, Late) else error) from error
        except BaseException:
            sock.close()
            raise
        return connection

    @property
    def subprotocol(self) -> str | None:
        return self._core.subprotocol

    def send(self, frame: bytes, deadline: float, *, is_binary: bool) -> None:
        """Send one message. Raises `Late`, after which nothing more can be sent."""
        if self._core.is_closed:
            return  # the next `receive` says why
        self._try_to_write(self._core.encode(frame, is_binary=is_binary), deadline)

    def ping(self, deadline: float) -> None:
        if not self._core.is_closed:
            self._try_to_write(self._core.ping(), deadline)

    def receive(self, deadline: float) -> bytes:
        """The next message. Raises `Late` or `Cut`."""
        messages = self._core.messages
        heard = False
        while not messages:
            if self._core.is_closed or not self._can_read:
                raise self._core.cut(self._failure)
            try:
                self._read(deadline)
            except OSError as error:
                raise self._core.cut(error) from error
            except Late:
                raise Late(heard=heard) from None
            heard = True
        return messages.popleft()

    def close(self, *, politely: bool) -> None:
        try:
            if politely and self._can_write:
                self._write(self._core.closing(), time.monotonic() + CLOSING_S)
        except (OSError, Late):
            pass  # the other side is gone already
        finally:
            self._socket.close()

    def leave(self, farewell: bytes | None, *, is_binary: bool) -> None:
        """`close`, with a last message, without waiting."""
        with suppress(OSError, Cut, Late):
            if self._can_write and not self._core.is_closed:
                last = b"" if farewell is None else self._core.encode(farewell, is_binary=is_binary)
                self._socket.settimeout(0)
                self._socket.send(last + self._core.closing())
        self._socket.close()

    def forget(self) -> None:
        """Close the descriptor, and nothing else: TLS would say goodbye, too."""
        socket.socket(fileno=self._socket.detach()).close()

    # Bytes in, bytes out.

    def _try_to_write(self, data: bytes, deadline: float) -> None:
        try:
            self._write(data, deadline)
        except OSError as error:
            self._failure = error

    def _write(self, data: bytes, deadline: float) -> None:
        if not self._can_write:
            raise Cut("the connection was left in the middle of a message")
        if not data:
            return
        self._can_write = False  # until all of it is sent: half a message is followed by nothing
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise Late from None
        self._can_write = True

    def _read(self, deadline: float) -> None:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self._can_read = False  # until what was read is taken: an interruption may lose it
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except TimeoutError:
            self._can_read = True
            raise Late from None
        answer = self._core.receive(data)
        self._can_read = True
        if answer and self._can_write:
            self._write(answer, deadline)


def _open(core: WebSocketCore, deadline: float) -> socket.socket:
    uri = core.uri
    timeout_s = max(deadline - time.monotonic(), 0.001)
    sock = socket.create_connection((uri.host, uri.port), timeout=timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if uri.secure:
            return ssl.create_default_context().wrap_socket(sock, server_hostname=uri.host)
    except BaseException:
        sock.close()
        raise
    return sock
