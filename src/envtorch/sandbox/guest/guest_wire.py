"""The messages between the owner and a sandbox, on the sandbox's side.

The control socket carries JSON packets. The data socket carries frames. From the owner a frame is a length
and a JSON object. To the owner it is a length, the kind of the message, the identifier of the request that
it belongs to, and a JSON object: so the owner can refuse a frame before it decodes any of it.
"""

import array
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_LIMIT = 64 * 1024
MAX_DESCRIPTORS = 32
_CHUNK = 1 << 16
_LENGTH = struct.Struct(">I")
HEADER = struct.Struct(">IB16s")
"""Of a frame to the owner: the size of what follows, the kind, the identifier."""
KINDS = {"result": 1, "call": 2, "variables": 3, "forked": 4, "shared": 5, "hello": 6}
CALL_LIMIT = 16 * 1024 * 1024
"""The largest frame that calls a function of the owner's, in bytes."""
VALUE_LIMIT = 50_000
"""The most values that the arguments of such a call may have, counting those in lists and mappings."""
_STRUCTURE = b'[{,"'
_ALL_BUT_STRUCTURE = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
ROOM = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)
_encoder = json.JSONEncoder(ensure_ascii=False)


def decode(text: str) -> Any:
    return json.loads(text)


def encode(message: Mapping[str, Any]) -> str:
    return _encoder.encode(message)


def has_too_many_values(data: bytes) -> bool:
    """Whether a JSON text has more than `VALUE_LIMIT` values. Found without decoding it, at the speed of a
    few passes over its bytes."""
    if data.count(b",") + data.count(b"[") + data.count(b"{") < VALUE_LIMIT:
        return False
    # What is left when escaped quotes, and all that is no structure, are gone: quotes come in pairs.
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _ALL_BUT_STRUCTURE)
    if bare.count(b'"') > 4 * VALUE_LIMIT:
        return True
    outside = bare.split(b'"')[::2]
    return sum(map(len, outside)) >= VALUE_LIMIT


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


def receive_bytes(channel: "socket.SocketType") -> tuple[bytes, list[int]] | None:
    """The same, not decoded."""
    try:
        data, ancillary, _, _ = channel.recvmsg(PACKET_LIMIT, ROOM, CLOEXEC)
    except ConnectionError:
        return None
    return (data, descriptors(ancillary)) if data else None


def descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    received = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return received.tolist()


def frame(kind: str, identifier: str, message: Mapping[str, Any]) -> bytes:
    """A message to the owner."""
    # A lone surrogate, which the owner's decoder would rightly refuse, becomes a question mark.
    data = encode(message).encode("utf-8", "replace")
    return HEADER.pack(len(data), KINDS[kind], identifier.encode()) + data


class Frames:
    """The sandbox's end of the data socket."""

    def __init__(self, channel: "socket.SocketType | None" = None) -> None:
        self._channel = channel
        self._buffer = bytearray()
        self.descriptors: list[int] = []
        """Descriptors that arrived and have not been taken yet."""

    def restart(self, channel: "socket.SocketType | None") -> None:
        """Go on with another socket, and nothing of the last one."""
        self._channel = channel
        self._buffer.clear()
        self.descriptors.clear()

    def send(self, data: bytes) -> None:
        assert self._channel is not None
        self._channel.sendall(data)

    def receive(self) -> Any:
        """The next message of the owner's. Raises `EOFError` when the owner has gone."""
        assert self._channel is not None
        buffer = self._buffer
        end = _LENGTH.size
        while len(buffer) < end or (end := _LENGTH.size + _LENGTH.unpack_from(buffer)[0]) > len(buffer):
            data, ancillary, _, _ = self._channel.recvmsg(max(_CHUNK, end - len(buffer)), ROOM, CLOEXEC)
            if ancillary:
                self.descriptors += descriptors(ancillary)
            if not data:
                raise EOFError
            buffer += data
        text = buffer[_LENGTH.size : end].decode()
        del buffer[:end]
        return decode(text)
