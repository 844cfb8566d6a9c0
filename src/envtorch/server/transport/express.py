"""Answers that leave from the environment's own thread.

An environment on a thread has its answer there. To have the event loop send it, the loop has to be woken, and
that takes longer than a quick step. So while a call is the only one that runs, its thread sends the answer
itself, and the loop does its accounts while the answer is under way. Under load the loop is awake anyway, and
sends what several threads have for it in one go.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from envtorch.protocol.extended import Message
from envtorch.protocol.formats import Format
from envtorch.protocol.wire import Reply
from envtorch.server.runners.thread_results import post

__all__ = ["DirectSocket", "ExpressDelivery"]

_LARGEST = 32 * 1024
"""What an idle socket takes in one go, in bytes."""
_FIN, _TEXT, _BINARY = 0x80, 0x1, 0x2


class DirectSocket:
    """A line's socket, for a thread that is not its loop's.

    A descriptor of its own, so that it can never be another connection's. Whoever writes to the line holds
    `lock`, and a thread writes only when nothing of the loop's is half written. A frame that leaves in part
    cuts the line: its client comes back for the answer, which the session has kept.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes, bool], None],
    ) -> None:
        """`send` is how the loop sends a frame on this line."""
        theirs = transport.get_extra_info("socket")
        self.lock = threading.Lock()
        self._socket = socket.fromfd(theirs.fileno(), theirs.family, theirs.type)
        self._transport = transport
        self._loop = loop
        self._send = send

    def send(self, frame: bytes, binary: bool) -> None:
        """Send a frame now, or have the loop send it. Called from any thread."""
        if len(frame) > _LARGEST or not self._send_now(_framed(frame, _BINARY if binary else _TEXT)):
            post(self._loop, self._send, frame, binary)

    def _send_now(self, data: bytes) -> bool:
        with self.lock:
            if self._transport.is_closing() or self._transport.get_write_buffer_size():
                return False
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except OSError:
                return False  # full, or gone: the loop knows what to do
            if sent < len(data):
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            return True

    def close(self) -> None:
        """Let go of the connection, which ends only then. Called when the line's own end has come."""
        with self.lock:
            self._socket.close()


class ExpressDelivery:
    """One answer that goes this way, unless its request is taken back before."""

    __slots__ = ("_channel", "_fate", "_format", "_id", "_socket", "is_claimed")

    def __init__(self, socket: DirectSocket, format: Format, *, id: int, channel: int) -> None:
        self._socket = socket
        self._format = format
        self._id, self._channel = id, channel
        self._fate = threading.Lock()  # whoever gets it decides, and nobody gives it back
        self.is_claimed = False

    def claim(self) -> bool:
        if not self._fate.acquire(blocking=False):
            return False
        self.is_claimed = True
        return True

    def revoke(self) -> bool:
        return self._fate.acquire(blocking=False)

    def deliver(self, reply: Reply) -> None:
        told = Message(reply.type, self._id, self._channel, msgspec.Raw(reply.data))
        self._socket.send(self._format.write(told), self._format.is_binary)


def _framed(payload: bytes, kind: int) -> bytes:
    """A server's frame: one whole message, not masked."""
    size = len(payload)
    if size < 126:
        return bytes((_FIN | kind, size)) + payload
    return bytes((_FIN | kind, 126)) + size.to_bytes(2, "big") + payload
