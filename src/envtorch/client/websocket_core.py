"""One WebSocket connection without a socket: `websockets`' protocol core, for both colours of client."""

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

__all__ = ["WebSocketCore", "connect_failed"]

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
        self.url = websocket_url(options.base_url)
        try:
            self.uri: WebSocketURI = parse_uri(self.url)
        except InvalidURI as error:
            raise ConfigurationError(f"{self.url!r} is not the address of a server: {error}") from error
        offered = [Subprotocol(name) for name in options.subprotocols] or None
        self._protocol = ClientProtocol(self.uri, subprotocols=offered, max_size=options.max_message_bytes)
        self._headers = [*options.all_headers.items(), *headers]
        if replica is not None:
            self._headers.append((REPLICA_HEADER, replica))
        self._fragments: list[bytes] = []
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
            raise connect_failed(self.url, error) from error

    @property
    def subprotocol(self) -> str | None:
        """What client and server agreed to speak; None for the base wire."""
        return self._protocol.subprotocol

    # Messages.

    def encode(self, message: bytes, *, is_binary: bool) -> bytes:
        """The bytes of one message. Raises `Cut` when the connection is closing."""
        if self._protocol.state is not State.OPEN:
            raise self.cut()
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
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        return b"".join(self._protocol.data_to_send())

    def _take(self, frame: Frame) -> None:
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
            return Cut(f"the connection to {self.url} is gone: {error}")
        by_us = protocol.close_rcvd is None
        close = protocol.close_sent if by_us else protocol.close_rcvd
        if close is None:
            return Cut(f"the connection to {self.url} is gone")
        return Cut(f"the connection to {self.url} was closed: {close}", code=close.code, by_us=by_us)


def connect_failed(url: str, error: Exception) -> EnvTorchError:
    """Why a server did not open a socket.

    Of `details`, `was_cut` says that the attempt broke on the way and may be repeated at once, `is_refused`
    that nothing listens there, `is_final` that another attempt will not end differently.
    """
    if isinstance(error, Unauthorized):  # it is an `OSError` too, and was made here before
        return error
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        if status == 401:
            return Unauthorized(f"{url} wants a token, and this one is missing, wrong or expired")
        return ConnectFailed(
            f"Failed to connect to {url}: {error}", was_cut=False, is_final=status not in RETRIED_STATUSES
        )
    is_refused = isinstance(error, ConnectionRefusedError)
    is_unknown = isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError)
    return ConnectFailed(
        f"Failed to connect to {url}: {error or type(error).__name__}",
        was_cut=not (is_refused or is_unknown),
        is_refused=is_refused,
    )
