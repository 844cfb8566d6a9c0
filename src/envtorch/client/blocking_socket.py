"""A blocking WebSocket with no thread and no event loop: websockets' sans-I/O core on one socket.

Messages that come and go in one piece, which is nearly all of them, are framed by `framing`.
"""

import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Self

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from envtorch.client.alertness import Alertness, may_look
from envtorch.client.framing import Incoming, Outgoing
from envtorch.errors import (
    ConfigurationError,
    ConnectFailed,
    EnvTorchError,
    SessionLost,
    TimedOut,
    Unauthorized,
)

__all__ = ["BlockingSocket", "Cut", "refused"]


class Cut(SessionLost):
    """The connection is gone. What becomes of the session is for somebody else to say."""


def refused(url: str, error: Exception) -> EnvTorchError:
    """Why a server did not open a socket; `was_cut` when it was the line's fault, and may work again."""
    if isinstance(error, InvalidStatus) and error.response.status_code == 401:
        return Unauthorized(f"{url} wants a token, and this one is missing, wrong or expired")
    was_cut = not isinstance(error, InvalidStatus)
    return ConnectFailed(f"Failed to connect to {url}: {error}", was_cut=was_cut)


class Patience:
    """How long a socket waits for one kind of call, kept by the kernel and set only when it changes.

    Python's own timeouts put a `poll` before every call and an `ioctl` before that; a step is four of each.
    A TLS socket needs Python's.
    """

    def __init__(self, sock: socket.socket, which: int) -> None:
        self._socket = sock
        self._which = which
        self._set = 0.0
        self._is_ours = sys.platform == "linux" and not isinstance(sock, ssl.SSLSocket)
        if self._is_ours:
            sock.settimeout(None)

    def until(self, deadline: float) -> None:
        """The next call may take as long as this; never no time, which would mean not to wait at all."""
        seconds = deadline - time.monotonic()
        if seconds > 2:
            seconds = ceil(seconds)  # a changing fraction is no change
        elif seconds < 0.001:
            seconds = 0.001
        if seconds != self._set or not self._is_ours:
            self._set = seconds
            self._tell(seconds)

    def _tell(self, seconds: float) -> None:
        if not self._is_ours:
            self._socket.settimeout(seconds)
            return
        whole = int(seconds)
        value = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, self._which, value)


class BlockingSocket:
    """One WebSocket connection. Not for use by two threads at once."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: ClientProtocol,
        url: str,
        *,
        max_message_bytes: int,
        alert_s: float = 0.0,
    ) -> None:
        self._socket = sock
        self._protocol = protocol
        self._url = url
        self._messages: deque[bytes] = deque()
        self._fragments: list[bytes] = []
        self._bytes_heard = 0
        self._to_send = Patience(sock, socket.SO_SNDTIMEO)
        self._to_receive = Patience(sock, socket.SO_RCVTIMEO)
        self._alertness = Alertness(alert_s) if alert_s > 0 and may_look(sock) else None
        self._outgoing = Outgoing()
        self._incoming = Incoming(max_message_bytes)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        timeout_s: float,
        max_message_bytes: int,
        headers: Mapping[str, str],
        subprotocols: Sequence[str] = (),
        alert_s: float = 0.0,
    ) -> Self:
        """An open connection. Raises `ConnectFailed` when there is none to be had in time.

        `alert_s` is how long to look for an answer before going to sleep over it.
        """
        deadline = time.monotonic() + timeout_s
        try:
            uri = parse_uri(url)
        except InvalidURI as error:
            raise ConfigurationError(f"{url!r} is not the address of a server: {error}") from error
        offered = [Subprotocol(name) for name in subprotocols] or None
        protocol = ClientProtocol(uri, subprotocols=offered, max_size=max_message_bytes)
        try:
            sock = _open(uri, timeout_s)
        except OSError as error:
            raise ConnectFailed(f"Failed to connect to {url}: {error}") from error
        connection = cls(sock, protocol, url, max_message_bytes=max_message_bytes, alert_s=alert_s)
        try:
            connection._shake_hands(headers, deadline)
        except BaseException:
            sock.close()
            raise
        return connection

    def _shake_hands(self, headers: Mapping[str, str], deadline: float) -> None:
        request = self._protocol.connect()
        for name, value in headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        try:
            self._flush(deadline)
            self._hear_answer(deadline)
        except OSError as error:
            raise refused(self._url, error) from error
        if self._protocol.handshake_exc is not None:
            raise refused(self._url, self._protocol.handshake_exc) from self._protocol.handshake_exc

    def _hear_answer(self, deadline: float) -> None:
        """Read the answer to the handshake; whatever came right behind it are frames already."""
        frames = b""
        while self._is_connecting() and self._protocol.handshake_exc is None:
            room = self._incoming.room()
            for line in bytes(room[: self._receive(room, deadline)]).splitlines(keepends=True):
                if self._is_connecting():
                    self._protocol.receive_data(line)
                else:
                    frames += line
        self._protocol.events_received()
        self._incoming.room()[: len(frames)] = frames
        self._sort(len(frames), deadline)

    def _is_connecting(self) -> bool:
        return self._protocol.state is State.CONNECTING

    @property
    def subprotocol(self) -> str | None:
        """What client and server agreed to speak; None for the base wire."""
        return self._protocol.subprotocol

    def send(self, frame: bytes, *, deadline: float, binary: bool = False) -> None:
        """Send one message. Raises `SessionLost` when the connection is gone."""
        if self._protocol.state is not State.OPEN:
            if self._messages:
                return  # the server said something before it closed: that is the answer
            raise self._lost()
        framed = self._outgoing.binary(frame) if binary else self._outgoing.text(frame)
        try:
            self._write(framed, deadline)
        except TimeoutError:
            raise TimedOut("the server took nothing before the deadline") from None
        except OSError as error:
            # The server may have said why before it went: what it said is still to be read.
            if not self._drain():
                raise self._lost(error) from error

    def receive(self, deadline: float) -> bytes:
        """The next message. Raises `TimedOut`, or `SessionLost` when the connection is gone."""
        while not self._messages:
            if self._protocol.state is not State.OPEN:
                raise self._lost()
            try:
                count = self._receive(self._incoming.room(), deadline)
                message = self._incoming.alone(count)
                if message is not None:
                    return message
                self._sort(count, deadline)
            except TimedOut:
                raise
            except OSError as error:
                raise self._lost(error) from error
        return self._messages.popleft()

    def receive_while_alive(self, deadline: float, *, heartbeat_s: float) -> bytes:
        """`receive`, but a connection that stays silent even when it is pinged is `Cut`."""
        pinged = False
        while True:
            heard = self._bytes_heard
            try:
                return self.receive(min(deadline, time.monotonic() + heartbeat_s))
            except TimedOut:
                if time.monotonic() >= deadline:
                    raise
            if self._bytes_heard != heard:
                pinged = False
            elif pinged:
                raise self._lost(TimedOut(f"silent for {2 * heartbeat_s:g} s"))
            else:
                self._ping(deadline)
                pinged = True

    def _ping(self, deadline: float) -> None:
        try:
            self._protocol.send_ping(b"?")
            self._flush(deadline)
        except OSError as error:
            raise self._lost(error) from error

    def abandon(self) -> None:
        """Let go without a word, as there is nobody to hear it."""
        self._socket.close()

    def close(self) -> None:
        """Say goodbye and let go. Never waits long, and never fails."""
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._flush(time.monotonic() + 1.0)
        except OSError:
            pass  # the other side is gone already
        finally:
            self._socket.close()

    # Bytes in, bytes out.

    def _flush(self, deadline: float) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._write(data, deadline)
            else:
                self._socket.shutdown(socket.SHUT_WR)

    def _write(self, data: bytes, deadline: float) -> None:
        self._to_send.until(deadline)
        try:
            self._socket.sendall(data)
        except BlockingIOError:  # the kernel's way to say that the time is over
            raise TimeoutError from None

    def _receive(self, room: memoryview, deadline: float) -> int:
        self._to_receive.until(deadline)
        try:
            count = self._alertness.receive_into(self._socket, room) if self._alertness is not None else None
            if count is None:
                count = self._socket.recv_into(room)
        except (TimeoutError, BlockingIOError):
            raise TimedOut("no reply from the server before the deadline") from None
        self._bytes_heard += count
        if not count:
            self._protocol.receive_eof()
        return count

    def _sort(self, count: int, deadline: float) -> None:
        for data, is_message in self._incoming.took(count):
            if is_message:
                self._messages.append(data)
            else:
                self._understand(data, deadline)

    def _understand(self, data: bytes, deadline: float) -> None:
        """Have the library make sense of what is not one whole message."""
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush(deadline)  # pongs, and the answer to a close

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            self._messages.append(b"".join(self._fragments))
            self._fragments.clear()

    def _drain(self) -> bool:
        """Read what the server had sent before it went; say whether it was anything."""
        try:
            deadline = time.monotonic() + 1.0
            while not self._messages and self._protocol.state is State.OPEN:
                self._sort(self._receive(self._incoming.room(), deadline), deadline)
        except OSError:
            pass
        return bool(self._messages)

    def _lost(self, error: Exception | None = None) -> Cut:
        if error is None and self._protocol.state is not State.OPEN:
            reason = str(self._protocol.close_exc) if self._protocol.state is State.CLOSED else "closed"
        else:
            reason = str(error or "closed")
        return Cut(f"the connection to {self._url} is gone: {reason}")


def _open(uri: WebSocketURI, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((uri.host, uri.port), timeout=timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if uri.secure:
            return ssl.create_default_context().wrap_socket(sock, server_hostname=uri.host)
    except BaseException:
        sock.close()
        raise
    return sock
