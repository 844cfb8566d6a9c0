"""WebSocket frames, read and written with as little as a step needs.

Nearly every frame of a session is one whole message. Those are handled here; whatever else may come (pings,
the end, fragments, frames that break the rules) is left, as it is, to the WebSocket library.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from websockets.frames import Opcode

try:
    from websockets.speedups import apply_mask
except ImportError:  # an interpreter without the compiled part
    from websockets.utils import apply_mask

__all__ = ["Incoming", "Outgoing", "Piece"]

CHUNK_BYTES = 64 * 1024

_FIN = 0x80
_MASKED = 0x80
_TEXT, _BINARY, _CONTINUED = int(Opcode.TEXT), int(Opcode.BINARY), int(Opcode.CONT)
_WHOLE = (_FIN | _TEXT, _FIN | _BINARY)
_BEGUN = (_TEXT, _BINARY)
_SEVERAL_KEYS = 256


class Piece(NamedTuple):
    """A message, or bytes that are for the library to understand."""

    data: bytes
    is_message: bool


class Outgoing:
    """Writes a client's messages, masked as they have to be."""

    def __init__(self) -> None:
        self._keys = _mask_keys()

    def text(self, payload: bytes) -> bytes:
        return self._frame(_FIN | _TEXT, payload)

    def binary(self, payload: bytes) -> bytes:
        return self._frame(_FIN | _BINARY, payload)

    def _frame(self, first: int, payload: bytes) -> bytes:
        size = len(payload)
        if size < 126:
            head = bytes((first, _MASKED | size))
        elif size < 1 << 16:
            head = bytes((first, _MASKED | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((first, _MASKED | 127)) + size.to_bytes(8, "big")
        key = next(self._keys)
        return b"%b%b%b" % (head, key, apply_mask(payload, key))


def _mask_keys() -> Iterator[bytes]:
    """Keys nobody can foretell, fetched from the kernel many at a time."""
    while True:
        fresh = os.urandom(4 * _SEVERAL_KEYS)
        for start in range(0, len(fresh), 4):
            yield fresh[start : start + 4]


class Incoming:
    """Sorts a server's bytes: `room()` is where the next ones go, `took(n)` says what n more of them came to.

    A large message is read straight into its place.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._limit = max_message_bytes
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._kept = b""
        self._large: bytearray | None = None
        self._filled = 0
        self._passing = 0
        self._in_fragments = False
        self._gave_up = False

    def room(self) -> memoryview:
        """Where to read to."""
        if self._large is None:
            return self._chunk
        return memoryview(self._large)[self._filled :]

    def alone(self, count: int) -> bytes | None:
        """The message that `count` more bytes are, no less and no more; None if `took` has to sort them."""
        chunk = self._chunk
        if not 2 <= count <= self._limit or chunk[0] not in _WHOLE or not self._is_clear:
            return None
        size = chunk[1]
        if size == 126 and count >= 4:
            return bytes(chunk[4:count]) if (chunk[2] << 8 | chunk[3]) + 4 == count else None
        return bytes(chunk[2:count]) if size + 2 == count and size < 126 else None

    def took(self, count: int) -> list[Piece]:
        """What is complete, now that `count` more bytes are there."""
        if self._large is not None:
            return self._grown(count)
        data = self._kept + bytes(self._chunk[:count])
        self._kept = b""
        return list(self._cut(data))

    @property
    def _is_clear(self) -> bool:
        return not (self._kept or self._large or self._passing or self._in_fragments or self._gave_up)

    def _grown(self, count: int) -> list[Piece]:
        assert self._large is not None
        self._filled += count
        if self._filled < len(self._large):
            return []
        message, self._large = bytes(self._large), None
        return [Piece(message, is_message=True)]

    def _cut(self, data: bytes) -> Iterator[Piece]:
        start = min(self._passing, len(data))
        if start:
            self._passing -= start
            yield Piece(data[:start], is_message=False)
        while not self._gave_up:
            head = _head(data, start)
            if head is None:
                self._kept = data[start:]
                return
            body, size = head
            first, end = data[start], body + size
            if data[start + 1] & _MASKED or size > self._limit:
                self._gave_up = True  # the library says what is wrong with it, and ends the connection
            elif first not in _WHOLE or self._in_fragments:
                self._note(first)
                self._passing = max(end - len(data), 0)
                yield Piece(data[start:end], is_message=False)
                start = min(end, len(data))
            elif end <= len(data):
                yield Piece(data[body:end], is_message=True)
                start = end
            else:
                self._wait_for(data, start, body, size)
                return
        yield Piece(data[start:], is_message=False)

    def _wait_for(self, data: bytes, start: int, body: int, size: int) -> None:
        if body - start + size <= CHUNK_BYTES:
            self._kept = data[start:]
            return
        self._large = bytearray(size)
        self._filled = len(data) - body
        self._large[: self._filled] = data[body:]

    def _note(self, first: int) -> None:
        if first in _BEGUN:
            self._in_fragments = True
        elif first == _FIN | _CONTINUED:
            self._in_fragments = False


def _head(data: bytes, start: int) -> tuple[int, int] | None:
    """Where the payload of the frame at `start` begins, and its size; None when that is not there yet."""
    there = len(data) - start
    if there < 2:
        return None
    size = data[start + 1] & 0x7F
    if size < 126:
        return start + 2, size
    width = 2 if size == 126 else 8
    if there < 2 + width:
        return None
    body = start + 2 + width
    return body, int.from_bytes(data[start + 2 : body], "big")
