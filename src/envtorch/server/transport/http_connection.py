"""HTTP connections with limits on what a peer may leave unfinished.

uvicorn closes a connection that is idle between two requests, but waits without limit for the rest of a
header or body that was begun, reads headers of any size and any number of requests ahead, and accepts
connections until the process has no descriptors left. Peers need no token for any of it.

A request that asks for another protocol than WebSocket is answered as if it had not asked, which HTTP leaves
to the server; uvicorn would answer it too, but take what follows its header for another request.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["HEADER_TIMEOUT_S", "BoundedHttpProtocol"]

HEADER_TIMEOUT_S = 10.0
"""How long a peer may take to send a request's header, from connecting or from its first byte."""

BODY_TIMEOUT_S = 30.0
"""How long a peer may send nothing in the middle of a body."""

MAX_HEADER_BYTES = 64 * 1024
"""How much of a header or trailer may come after the packet it began in: joining it costs its square."""

HEADER_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)

MOST_AHEAD = 256
"""How many requests of one connection may wait for the one that is being answered."""

SWEEP_S = 1.0
"""How often connections are looked at; also the age below which none is closed to make room for others."""


def _most_idle() -> int:
    """How many connections may be open with no request being answered: a quarter of the descriptors."""
    if sys.platform == "win32":
        return 1024
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1024 if soft == resource.RLIM_INFINITY else max(16, min(1024, soft // 4))


class TooManyAhead(Exception):
    """A peer sends requests without waiting for answers."""


class HttpConnections:
    """The HTTP connections of one server; upgraded ones are no longer among them."""

    _of_state: "WeakKeyDictionary[ServerState, HttpConnections]" = WeakKeyDictionary()

    @classmethod
    def of(cls, state: ServerState) -> "HttpConnections":
        found = cls._of_state.get(state)
        if found is None:
            found = cls._of_state[state] = cls()
        return found

    def __init__(self) -> None:
        self._open: dict[BoundedHttpProtocol, None] = {}
        self._most_idle = _most_idle()
        self._is_sweeping = False

    def add(self, connection: "BoundedHttpProtocol") -> None:
        self._open[connection] = None
        if not self._is_sweeping:
            self._is_sweeping = True
            connection.loop.call_later(SWEEP_S, self._sweep, connection.loop)

    def discard(self, connection: "BoundedHttpProtocol") -> None:
        self._open.pop(connection, None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been unfinished for too long, and the oldest idle ones where there are too many."""
        now = loop.time()
        idle = []
        for connection in list(self._open):
            if connection.is_overdue(now):
                connection.abort()
            elif connection.is_awaited and now - connection.opened >= SWEEP_S:
                idle.append(connection)
        for connection in idle[: max(0, len(idle) - self._most_idle)]:
            connection.abort()
        self._is_sweeping = bool(self._open)
        if self._is_sweeping:
            loop.call_later(SWEEP_S, self._sweep, loop)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection, closed when its peer leaves a request unfinished for too long."""

    _connections: HttpConnections
    _due: float | None = None
    """When the header or body that is being read is overdue; None between requests."""
    _header_bytes = 0
    """How many bytes have come since the last one that began or ended a header, or was part of a body."""
    _is_finishing = False
    """Whether the connection is closed after the answers that are due, and nothing more is read."""
    opened = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unanswered: deque[RequestResponseCycle] = deque()
        """The request that is being answered, then those that wait for it."""
        self.opened = self.loop.time()
        self._due = self.opened + HEADER_TIMEOUT_S
        self._connections = HttpConnections.of(self.server_state)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        for cycle in self._unanswered:  # uvicorn tells the newest request only, which may not be begun
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._connections.discard(self)
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        if self._is_finishing:
            return
        self._header_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._header_bytes <= MAX_HEADER_BYTES:
            return
        if self.is_idle:
            self.transport.write(HEADER_TOO_LARGE)
            self.transport.close()
        else:
            self.abort()

    def _parse(self, data: bytes) -> None:
        """Read on. A request whose upgrade is declined is read once more, without its `Upgrade` header: the
        parser takes no body after one that asks for an upgrade."""
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self._finish(partial(self.send_400_response, "Invalid HTTP request received."))
            except HttpParserUpgrade as asked:
                if self._should_upgrade():
                    self._finish(self.handle_websocket_upgrade)
                elif self.scope["method"] == "CONNECT":
                    self._finish(partial(self.send_400_response, "This server is no proxy."))
                else:
                    data = self._head_without_upgrade() + data[asked.args[0] :]
                    self.parser = HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's is
                    continue
            return

    def _finish(self, last: Callable[[], None]) -> None:
        """Do the last thing on this connection as HTTP. Where requests came before that are not answered yet,
        it is closed after their answers instead: what is written now would be taken for the first of them."""
        before = [cycle for cycle in self._unanswered if not cycle.more_body]
        if before:
            before[-1].keep_alive = False
            self._is_finishing = True
        else:
            last()

    def _should_upgrade(self) -> bool:
        """Whether this is the handshake of a WebSocket: such a request is a GET, and has no body."""
        lengths = [value for name, value in self.headers if name == b"content-length"]
        has_body = any(length.strip(b" 0") for length in lengths)
        is_coded = any(name == b"transfer-encoding" for name, _ in self.headers)
        return super()._should_upgrade() and self.scope["method"] == "GET" and not has_body and not is_coded

    def _head_without_upgrade(self) -> bytes:
        first = f"{self.scope['method']} {self.url.decode('latin-1')} HTTP/{self.scope['http_version']}"
        lines = [first.encode("latin-1")]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    @property
    def _is_upgrade_declined(self) -> bool:
        return self.parser.should_upgrade() and not self._should_upgrade()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_AHEAD:
            self.abort()
            raise TooManyAhead  # the parser stops in the middle of what it was given
        self._due = self.loop.time() + HEADER_TIMEOUT_S
        self._header_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._due = self.loop.time() + BODY_TIMEOUT_S
        self._header_bytes = 0
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            if not self._should_upgrade():
                return  # it comes again
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._due = self.loop.time() + BODY_TIMEOUT_S
        self._header_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if self.pipeline:  # uvicorn reads on, though requests wait
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._due = None
        if not self._is_upgrade_declined:
            super().on_message_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def is_awaited(self) -> bool:
        """Whether it is the peer's turn: to begin a request, or to send the rest of one."""
        return self.is_idle or (self._due is not None and not self.flow.read_paused)

    def is_overdue(self, now: float) -> bool:
        """Whether the peer has kept a header or body waiting for too long.

        A connection that is not read, because the application has not yet taken what came before, waits for
        us.
        """
        return self._due is not None and now > self._due and not self.flow.read_paused

    def abort(self) -> None:
        self.transport.abort()
