"""How the far side talks: JSON packets to keep control, length-prefixed JSON frames to run code."""

import array
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from json import encoder
from typing import Any

PACKET_LIMIT = 64 * 1024
SHORT_PACKET = 448
"""What nobody has to ask `malloc` for."""
MAX_DESCRIPTORS = 32
_LITTLE = 4096
"""What is read of a frame at first; most are no longer."""
_LENGTH = struct.Struct(">I")
_PREFIX = _LENGTH.size
_number_at = struct.Struct("i").unpack_from
_NUMBER = struct.calcsize("i")
_RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
quote = encoder.encode_basestring
"""A text as JSON."""

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_plain = json.JSONEncoder(ensure_ascii=False)
# The C encoder itself: `JSONEncoder.encode` makes one for every message, by way of Python functions whose
# memory each sandbox would then have copied.
_make_encoder: Any = getattr(encoder, "c_make_encoder", None)
_chunks = _make_encoder and _make_encoder(
    None, _plain.default, encoder.encode_basestring, None, ": ", ", ", False, False, True
)
CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
ROOM = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)


def decode(text: str) -> Any:
    """What the owner's JSON means: it has no white space around it."""
    return _scan(text, 0)[0]


def encode(message: Mapping[str, Any]) -> str:
    return "".join(_chunks(message, 0)) if _chunks else _plain.encode(message)


def send_packet(
    channel: "socket.SocketType", message: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    channel.sendmsg([encode(message).encode()], rights)


def receive_packet(channel: "socket.SocketType") -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and the descriptors that came with it; None when the other side has gone."""
    received = receive_bytes(channel)
    if received is None:
        return None
    data, given = received
    return decode(data.decode()), given


def receive_bytes(
    channel: "socket.SocketType", longest: int = PACKET_LIMIT
) -> tuple[bytes, list[int]] | None:
    """The same, for whoever does not want to look into it."""
    try:
        data, ancillary, _, _ = channel.recvmsg(longest, ROOM, CLOEXEC)
    except ConnectionError:
        return None
    return (data, descriptors(ancillary) if ancillary else []) if data else None


def descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    received: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == _RIGHTS:
            for place in range(0, len(content) - _NUMBER + 1, _NUMBER):
                received += _number_at(content, place)
    return received


def frame(text: str) -> bytes:
    """A message that is JSON already, with its length before it."""
    # A lone surrogate, which the owner's decoder would rightly refuse, becomes a question mark.
    data = text.encode("utf-8", "replace")
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Length-prefixed JSON frames on the sandbox's one stream."""

    def __init__(self, channel: "socket.SocketType") -> None:
        self.channel = channel
        self._buffer = bytearray()
        self.descriptors: list[int] = []
        """Descriptors that arrived and nobody has taken yet."""

    def restart(self, channel: "socket.SocketType") -> None:
        """Go on with another stream, and nothing of the last one."""
        self.channel = channel
        self._buffer.clear()
        self.descriptors.clear()

    def send(self, message: Mapping[str, Any]) -> None:
        self.channel.sendall(frame(encode(message)))

    def send_text(self, text: str) -> None:
        """Send a message that is JSON already."""
        self.channel.sendall(frame(text))

    def receive(self) -> Any:
        """The next frame. Raises `EOFError` when the owner has gone."""
        buffer = self._buffer
        end = _PREFIX
        while len(buffer) < end or (end := _PREFIX + _LENGTH.unpack_from(buffer)[0]) > len(buffer):
            data, ancillary, _, _ = self.channel.recvmsg(max(_LITTLE, end - len(buffer)), ROOM, CLOEXEC)
            if ancillary:
                self.descriptors += descriptors(ancillary)
            if not data:
                raise EOFError
            buffer += data
        text = buffer[_PREFIX:end].decode()
        del buffer[:end]
        return _scan(text, 0)[0]
