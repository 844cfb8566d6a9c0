"""How the far side talks: JSON packets to keep control, length-prefixed JSON frames to run code."""

import array
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_LIMIT = 64 * 1024
MAX_DESCRIPTORS = 32
_CHUNK = 64 * 1024
_LENGTH = struct.Struct(">I")


decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(ensure_ascii=False).encode
_ROOM = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)


def send_packet(
    channel: "socket.SocketType", message: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    channel.sendmsg([_encode(message).encode()], rights)


def receive_packet(channel: "socket.SocketType") -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and the descriptors that came with it; None when the other side has gone."""
    received = receive_bytes(channel)
    if received is None:
        return None
    data, descriptors = received
    return decode(data.decode()), descriptors


def receive_bytes(channel: "socket.SocketType") -> tuple[bytes, list[int]] | None:
    """The same, for whoever does not want to look into it."""
    try:
        data, ancillary, _, _ = channel.recvmsg(PACKET_LIMIT, _ROOM, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    return (data, _descriptors(ancillary)) if data else None


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    received = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return received.tolist()


class Frames:
    """Length-prefixed JSON frames on the sandbox's one stream."""

    def __init__(self, channel: "socket.SocketType") -> None:
        self.channel = channel
        self._buffer = bytearray()
        self.descriptors: list[int] = []
        """Descriptors that arrived and nobody has taken yet."""

    def send(self, message: Mapping[str, Any]) -> None:
        # A lone surrogate, which the owner's decoder would rightly refuse, becomes a question mark.
        data = _encode(message).encode("utf-8", "replace")
        self.channel.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> dict[str, Any]:
        """The next frame. Raises `EOFError` when the owner has gone."""
        size = _LENGTH.unpack(self._take(_LENGTH.size))[0]
        message: dict[str, Any] = decode(self._take(size).decode())
        return message

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self) -> None:
        data, ancillary, _, _ = self.channel.recvmsg(_CHUNK, _ROOM, socket.MSG_CMSG_CLOEXEC)
        if ancillary:
            self.descriptors += _descriptors(ancillary)
        if not data:
            raise EOFError
        self._buffer += data
