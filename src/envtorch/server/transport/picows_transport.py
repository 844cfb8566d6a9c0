"""WebSockets on our own server: the handshake through ASGI, the frames straight from picows.

uvicorn passes a WebSocket handshake to the application, through every route and middleware. When the
application takes the socket over, by the extension that it finds in its scope, the connection is given to
picows: from then on a frame is one call, with no queue, no task and no ASGI message in between.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import picows.picows as engine
from picows.common import (
    WSProtocolError,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from envtorch.server.transport.connection import STALLED_S, UNSENT_BYTES, Conversation

__all__ = ["FastLine"]

logger = logging.getLogger("envtorch.server.socket")
logger.setLevel(logging.CRITICAL)  # a peer that breaks the WebSocket protocol is told so; no log need be
slow = logging.getLogger(__name__)

with suppress(ImportError):  # where it is installed, picows loads it with the first socket, which would wait
    import_module("aiofastnet.transport")

WSProtocol: Any = vars(engine)["WSProtocol"]  # without a type stub, but what picows' own server is made of

TEXT, BINARY, CONTINUATION, CLOSE = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION, WSMsgType.CLOSE
DATA_BEGINS = frozenset(bytes([byte]) for byte in (*b"{[", *range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""How our messages begin: an object or a list, of JSON or of MessagePack. No close frame does."""
CLOSE_PATIENCE_S = 5.0
"""How long a peer has to answer our close frame."""
LARGEST = 4
"""How many times the largest message a frame may have that is read, to be answered with an error; a larger
one ends its socket."""
MOST_PARTS = 4096
"""How many frames one message may be divided into."""
EARLY_LIMIT = 16
"""How many messages may wait for a conversation to begin before no more are read."""
PROGRESS_S = 2.0
"""How often a peer that is slow to read is looked at."""
UNSENT_MESSAGES = 4
"""How many messages of the largest size may be unsent to a peer that reads nothing, before it is dropped."""
SMALL_FRAME = 8192
"""How many bytes of payload picows' `send` copies. Of a larger frame it gives the transport a view of its own
header, which the next frame overwrites where the transport could not send it at once (picows 2.3)."""
HEADER_ROOM = 14
"""How many bytes picows needs in front of a payload for the header of its frame."""

HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: envtorch\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
)
"""The part of the client's handshake that picows needs to answer it; the rest has been looked at."""


def _feed(protocol: Any, data: bytes) -> None:
    protocol.get_buffer(-1)[: len(data)] = data
    protocol.buffer_updated(len(data))


class Outbox:
    """Frames that leave together: those of one turn of the event loop, whatever lines they are for.

    Sending wakes the peer, which costs the sender more than the send itself; of frames that leave in a row,
    the first one wakes it for all. None waits longer than `PATIENCE_S` for others, and while they come one by
    one, none waits at all.
    """

    PATIENCE_S = 0.0005
    COMPANY_S = 0.0001
    """Frames that are no further apart than this may well be of one turn."""
    _of_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, Outbox]" = WeakKeyDictionary()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Outbox":
        found = cls._of_loop.get(loop)
        if found is None:
            found = cls._of_loop[loop] = cls()
        return found

    def __init__(self) -> None:
        self._waiting: list[tuple[FastLine, Any, bytes]] = []
        self._since = 0.0
        self._several_last_turn = True

    def post(self, line: "FastLine", kind: Any, frame: bytes) -> None:
        now = perf_counter()
        if not self._waiting:
            if not self._several_last_turn and now - self._since > self.COMPANY_S:
                self._since = now
                line.write(kind, frame)
                return
            self._since = now
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._waiting.append((line, kind, frame))
        if now - self._since > self.PATIENCE_S:
            self.flush()

    def _end_turn(self) -> None:
        self._several_last_turn = len(self._waiting) != 1
        self.flush()

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for line, kind, frame in waiting:
            line.write(kind, frame)


class SlowReaderWatch:
    """Watches a peer that is slow to read, and drops it when it reads nothing for too long.

    Sooner if more than `most_bytes` are unsent: what a peer may cost that never reads is bounded.
    """

    def __init__(self, transport: asyncio.Transport, most_bytes: int) -> None:
        self.added = 0
        """Bytes that were sent since the peer was looked at."""
        self._transport = transport
        self._most_bytes = most_bytes
        self._loop = asyncio.get_running_loop()
        self._unsent = transport.get_write_buffer_size()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(PROGRESS_S, self._look)

    def _look(self) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent + self.added:
            self._since = self._loop.time()
        self._unsent, self.added = unsent, 0
        patience_s = STALLED_S if unsent <= self._most_bytes else 2 * PROGRESS_S
        if self._loop.time() - self._since >= patience_s:
            slow.warning("a peer has read nothing for %.0f s: its socket is dropped", patience_s)
            self._transport.abort()
            return
        self._timer = self._loop.call_later(PROGRESS_S, self._look)

    def cancel(self) -> None:
        self._timer.cancel()


class FastLine(WSListener):
    """A socket that picows reads and writes."""

    def __init__(self, connections: set[Any], subprotocol: str | None, max_bytes: int) -> None:
        headers = [("Sec-WebSocket-Protocol", subprotocol)] if subprotocol else []
        self._response = WSUpgradeResponse.create_101_response(headers)
        self._outbox = Outbox.of(asyncio.get_running_loop())
        self._connections = connections
        connections.add(self)
        self._max_bytes = max_bytes
        self._transport: Any = None  # a WSTransport, whose stub knows fewer close codes than there are
        self._early: list[bytes] = []
        self._take: Callable[[bytes], None] = self._keep
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._is_refused = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_congested = self._is_paused = False
        self._posted = 0
        self._go_on: Callable[[], None] | None = None
        self._slow_reader: SlowReaderWatch | None = None

    def open(
        self,
        transport: asyncio.Transport,
        key: bytes,
        ping_every_s: float | None,
        patience_s: float | None,
    ) -> None:
        """Answer the handshake that has this key, and read the connection, which is paused, from now on."""
        interval = ping_every_s or 20.0
        protocol = WSProtocol(
            host_port=None,
            ws_path=None,
            is_client_side=False,
            ws_listener_factory=self._meet,
            logger=logger,
            disconnect_on_exception=True,
            websocket_handshake_timeout=None,
            enable_auto_ping=bool(ping_every_s),
            auto_ping_idle_timeout=interval,
            auto_ping_reply_timeout=min(patience_s or interval, interval),
            auto_ping_strategy=0,
            enable_auto_pong=True,
            max_frame_size=LARGEST * self._max_bytes,
            extra_headers=None,
            read_buffer_init_size=2048,
        )
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        _feed(protocol, HANDSHAKE % key)
        transport.resume_reading()

    def _meet(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        return WSUpgradeResponseWithListener(self._response, self)

    # What picows tells.

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if len(payload) > LARGEST * self._max_bytes:
            return  # picows closes the connection over it, and calls this all the same
        if payload[:1] in DATA_BEGINS and frame.fin and not self._parts:
            self._hand_over(payload)
            return
        kind = frame.msg_type  # asked only now: it takes longer than to read the frame
        if kind is CLOSE:
            self._say_goodbye(frame.get_close_code())
        elif kind in (TEXT, BINARY, CONTINUATION):
            self._collect(kind, payload, frame.fin)

    def _hand_over(self, message: bytes) -> None:
        try:
            self._take(message)
        except Exception:
            logger.critical("a frame could not be answered; its socket is closed", exc_info=True)
            raise

    def send_user_specific_ping(self, transport: WSTransport) -> None:
        """Ping the peer, unless nothing is read from it: then its answer could not be seen."""
        if self._is_paused or self._is_congested:
            asyncio.get_running_loop().call_soon(transport.notify_user_specific_pong_received)
        else:
            transport.send_ping()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._connections.discard(self)
        self._go_on = None
        self._watch_progress(False)
        if not self._ended.done():
            self._ended.set_result(None)

    def pause_writing(self) -> None:
        self._is_congested = True
        self._watch_reading()
        self._watch_progress(True)

    def resume_writing(self) -> None:
        self._is_congested = False
        self._watch_reading()
        self._watch_progress(False)
        self._tell_drained()

    def _keep(self, message: bytes) -> None:
        """Keep a message until a conversation begins."""
        self._early.append(message)
        if len(self._early) == EARLY_LIMIT:
            self.pause()

    def _collect(self, kind: WSMsgType, payload: bytes, is_last: bool) -> None:
        """Put a message together that comes in parts."""
        if self._is_refused:
            return
        if (kind is CONTINUATION) is not bool(self._parts):
            raise self._refused(WSCloseCode.PROTOCOL_ERROR, "a part of a message out of order")
        self._parts.append(payload)
        self._parts_bytes += len(payload)
        if self._parts_bytes > self._max_bytes:
            told = f"the message has more than {self._max_bytes} bytes"
            raise self._refused(WSCloseCode.MESSAGE_TOO_BIG, told)
        if len(self._parts) > MOST_PARTS:
            raise self._refused(WSCloseCode.POLICY_VIOLATION, f"the message has more than {MOST_PARTS} parts")
        if is_last:
            whole, self._parts, self._parts_bytes = b"".join(self._parts), [], 0
            self._hand_over(whole)

    def _refused(self, code: WSCloseCode, reason: str) -> WSProtocolError:
        """The error that has picows close the socket; what still comes is not looked at."""
        self._is_refused = True
        self._parts, self._parts_bytes = [], 0
        return WSProtocolError(code, reason)

    # What a conversation asks for.

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        self._posted += len(frame)
        self._outbox.post(self, BINARY if binary else TEXT, frame)

    def write(self, kind: Any, frame: bytes) -> None:
        """Send a frame now: called by the outbox."""
        if self._slow_reader is not None:
            self._slow_reader.added += len(frame)
        self._posted -= len(frame)
        if len(frame) > SMALL_FRAME:
            self._transport.send_reuse_external_bytearray(kind, bytearray(HEADER_ROOM) + frame, HEADER_ROOM)
        else:
            self._transport.send(kind, frame)
        if self._go_on is not None:
            self._tell_drained()

    def close(self, code: int = 1000) -> None:
        self._outbox.flush()
        self._transport.send_close(code)
        asyncio.get_running_loop().call_later(CLOSE_PATIENCE_S, self._transport.disconnect)

    def pause(self) -> None:
        self._is_paused = True
        self._watch_reading()

    def resume(self) -> None:
        self._is_paused = False
        self._watch_reading()

    def has_room(self, go_on: Callable[[], None], *, more: int = 0) -> bool:
        unsent = self._posted + more
        if self._is_congested:
            unsent += self._transport.underlying_transport.get_write_buffer_size()
        if unsent <= UNSENT_BYTES or self._ended.done():
            return True
        self._go_on = go_on
        self._tell_drained()
        return False

    def _tell_drained(self) -> None:
        if self._go_on is not None and not self._is_congested and not self._posted:
            go_on, self._go_on = self._go_on, None
            asyncio.get_running_loop().call_soon(go_on)

    async def converse(self, conversation: Conversation) -> None:
        early, self._early = self._early, []
        self._take = conversation.take
        if len(early) >= EARLY_LIMIT:
            self.resume()
        for frame in early:
            conversation.take(frame)
        await self._ended

    def _watch_reading(self) -> None:
        """Read while the peer takes what it is sent, and the conversation takes what it sends."""
        underlying = self._transport.underlying_transport
        with suppress(RuntimeError):  # it may be closing
            if self._is_paused or self._is_congested:
                underlying.pause_reading()
            else:
                underlying.resume_reading()

    def _watch_progress(self, is_congested: bool) -> None:
        """Drop the peer if it reads nothing of what is unsent."""
        if is_congested and self._slow_reader is None and not self._ended.done():
            self._slow_reader = SlowReaderWatch(
                self._transport.underlying_transport, UNSENT_MESSAGES * self._max_bytes
            )
        elif not is_congested and self._slow_reader is not None:
            self._slow_reader.cancel()
            self._slow_reader = None

    def _say_goodbye(self, code: Any) -> None:
        """The peer closes, or answers our own close frame."""
        self._outbox.flush()
        if not self._transport.is_close_frame_sent:
            self._transport.send_close(code or 1000)
        self._transport.disconnect()

    def shutdown(self) -> None:
        """uvicorn stops."""
        self._outbox.flush()
        self._transport.send_close(1012)
        self._transport.disconnect()
