"""One WebSocket connection without a socket: `websockets`' protocol core, for both colours of client."""

import secrets
import struct
from collections import deque
from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from envtorch.client.client_options import ClientOptions
from envtorch.errors import ConfigurationError, ConnectFailed, EnvTorchError, Unauthorized
from envtorch.protocol.reconnect import Cut
from envtorch.protocol.requests import websocket_url
from envtorch.shown_urls import shown_url

__all__ = ["WebSocketCore", "connect_failed"]

HEADER_END = b"\r\n\r\n"
WHOLE = (0x80 | Opcode.TEXT, 0x80 | Opcode.BINARY)
"""How a frame begins that is a whole message."""
LENGTH_IN_2_BYTES, LENGTH_IN_8_BYTES = 126, 127
LONGER = struct.Struct("!BBH")
SHORT_BYTES = 4096
"""Messages of up to this size are framed here; for longer ones the library's masking is faster."""

REPLICA_HEADER = "EnvTorch-Replica"
RETRIED_STATUSES = frozenset((429, 500, 502, 503, 504))
"""Answers to a handshake that a proxy gives while its server is away for a moment."""


class WebSocketCore:
    """Bytes in, messages out, and the other way round. The shell around it owns the socket."""

    def __init__(
        self,
        options: ClientOptions,
        replica: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`replica` is the server, of those behind a proxy, that has the session."""
        url = websocket_url(options.base_url)
        self.shown_url = shown_url(url)
        try:
            self.uri: WebSocketURI = parse_uri(url)
        except (InvalidURI, ValueError) as error:
            why = shown_url(str(error))
            raise ConfigurationError(f"{self.shown_url!r} is not the address of a server: {why}") from error
        offered = [Subprotocol(name) for name in options.subprotocols] or None
        self._protocol = ClientProtocol(self.uri, subprotocols=offered, max_size=options.max_message_bytes)
        self._headers = [*options.all_headers.items(), *headers]
        self._max_bytes = options.max_message_bytes
        if replica is not None:
            self._headers.append((REPLICA_HEADER, replica))
        self._fragments: list[bytes] = []
        self._unframed: int | None = None
        """How many bytes the library was given beyond the frames it has returned; None when that is unknown.
        At 0 it is between two frames."""
        self._has_heard = False
        self.messages: deque[bytes] = deque()
        """Whole messages that have arrived and were not taken."""

    # The handshake.

    def start(self) -> bytes:
        """The bytes that begin the handshake."""
        request = self._protocol.connect()
        for name, value in self._headers:
            request.headers[name] = value
        self._protocol.send_request(request)
        return b"".join(self._protocol.data_to_send())

    @property
    def is_connecting(self) -> bool:
        """The server has not answered the handshake yet."""
        return self._protocol.state is State.CONNECTING and self._protocol.handshake_exc is None

    def require_open(self) -> None:
        """Raise why the handshake failed, if it did."""
        error = self._protocol.handshake_exc
        if error is not None:
            raise connect_failed(self.shown_url, error) from error

    @property
    def subprotocol(self) -> str | None:
        """What client and server agreed to speak; None for the base wire."""
        return self._protocol.subprotocol

    # Messages.

    def encode(self, message: bytes, *, is_binary: bool) -> bytes:
        """The bytes of one message. Raises `Cut` when the connection is closing."""
        if self._protocol.state is not State.OPEN:
            raise self.cut()
        if len(message) <= SHORT_BYTES:
            return short_frame(message, secrets.token_bytes(4), is_binary=is_binary)
        if is_binary:
            self._protocol.send_binary(message)
        else:
            self._protocol.send_text(message)
        return b"".join(self._protocol.data_to_send())

    def ping(self) -> bytes:
        if self._protocol.state is not State.OPEN:
            raise self.cut()
        self._protocol.send_ping(b"?")
        return b"".join(self._protocol.data_to_send())

    def closing(self) -> bytes:
        """The bytes that close the connection; empty when it is closed."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
        return b"".join(self._protocol.data_to_send())

    def receive(self, data: bytes) -> bytes:
        """Take bytes that arrived, none for the end; the bytes to send in return: pongs, or a closing."""
        if self._unframed == 0 and not self._fragments and self._protocol.state is State.OPEN:
            message = whole_message(data, self._max_bytes)
            if message is not None:
                self.messages.append(message)
                return b""
        self._count(data)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        return b"".join(self._protocol.data_to_send())

    def _count(self, data: bytes) -> None:
        """Note that the library is given `data`."""
        if self._unframed is not None:
            self._unframed += len(data)
        elif not self._has_heard and data.find(HEADER_END) + len(HEADER_END) == len(data):
            self._unframed = 0  # the answer to the handshake came whole, and nothing after it
        self._has_heard = True

    def _take(self, frame: Frame) -> None:
        if self._unframed is not None:
            self._unframed -= _header_size(len(frame.data)) + len(frame.data)
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.fin and not self._fragments:
            self.messages.append(bytes(frame.data))
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            self.messages.append(b"".join(self._fragments))
            self._fragments.clear()

    # The end.

    @property
    def is_closed(self) -> bool:
        """Nothing more will arrive."""
        protocol = self._protocol
        return (
            protocol.state is State.CLOSED
            or protocol.close_rcvd is not None
            or protocol.parser_exc is not None
        )

    def cut(self, error: Exception | None = None) -> Cut:
        """What to raise for a connection that is gone, with the code of its closing."""
        protocol = self._protocol
        if error is not None and protocol.close_rcvd is None and protocol.close_sent is None:
            return Cut(f"the connection to {self.shown_url} is gone: {error}")
        by_us = protocol.close_rcvd is None
        close = protocol.close_sent if by_us else protocol.close_rcvd
        if close is None:
            return Cut(f"the connection to {self.shown_url} is gone")
        return Cut(f"the connection to {self.shown_url} was closed: {close}", code=close.code, by_us=by_us)


def whole_message(data: bytes, most_bytes: int) -> bytes | None:
    """The message in `data`, if it is exactly one frame of a server that holds a whole message.

    Everything else is for the library: several frames, parts of one, control frames, what is too large, and
    what no server may send.
    """
    if len(data) < 2 or data[0] not in WHOLE:
        return None
    length, size = data[1], 2
    if length == LENGTH_IN_2_BYTES:
        length, size = int.from_bytes(data[2:4], "big"), 4
    elif length == LENGTH_IN_8_BYTES:
        length, size = int.from_bytes(data[2:10], "big"), 10
    elif length > LENGTH_IN_8_BYTES:  # masked, as only a client's frames are
        return None
    return data[size:] if len(data) == size + length and length <= most_bytes else None


def short_frame(message: bytes, mask: bytes, *, is_binary: bool) -> bytes:
    """A client's frame with a whole message of at most `SHORT_BYTES`."""
    size = len(message)
    head = WHOLE[is_binary]
    length = bytes((head, 0x80 | size)) if size < LENGTH_IN_2_BYTES else LONGER.pack(head, 0x80 | 126, size)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return length + mask + (int.from_bytes(message, "big") ^ key).to_bytes(size, "big")


def _header_size(length: int) -> int:
    """How long the header of a server's frame is, at least."""
    return 2 if length < LENGTH_IN_2_BYTES else 4 if length < 2**16 else 10


def connect_failed(url: str, error: Exception) -> EnvTorchError:
    """Why a server did not open a socket; `url` is as it may be shown.

    Of `details`, `was_cut` says that the attempt broke on the way and may be repeated, `is_refused`
    that nothing listens there, `is_final` that another attempt will not end differently.
    """
    if isinstance(error, Unauthorized | ConnectFailed):  # an `OSError` too, which was made here before
        return error
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        if status == 401:
            return Unauthorized(f"{url} wants a token, and this one is missing, wrong or expired")
        is_brief = status in RETRIED_STATUSES
        return ConnectFailed(f"Failed to connect to {url}: {error}", was_cut=is_brief, is_final=not is_brief)
    is_refused = isinstance(error, ConnectionRefusedError)
    is_unknown = isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError)
    return ConnectFailed(
        f"Failed to connect to {url}: {error or type(error).__name__}",
        was_cut=not (is_refused or is_unknown),
        is_refused=is_refused,
    )
