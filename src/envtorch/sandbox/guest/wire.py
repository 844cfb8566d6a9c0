"""How the far side talks: JSON packets to keep control, length-prefixed JSON frames to run code."""

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

PACKET_LIMIT = 64 * 1024
MAX_DESCRIPTORS = 16
_LENGTH = struct.Struct(">I")


def send_packet(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(channel, [json.dumps(message).encode()], list(descriptors))


def receive_packet(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and the descriptors that came with it; None when the other side has gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, PACKET_LIMIT, MAX_DESCRIPTORS)
    except ConnectionError:
        return None
    if not data:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return json.loads(data), descriptors


class Frames:
    """Length-prefixed JSON frames on the sandbox's one stream."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._buffer = bytearray()
        self.descriptors: list[int] = []
        """Descriptors that arrived and nobody has taken yet."""

    def send(self, message: Mapping[str, Any]) -> None:
        # A lone surrogate, which the owner's decoder would rightly refuse, becomes a question mark.
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        self.channel.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> dict[str, Any]:
        """The next frame. Raises `EOFError` when the owner has gone."""
        size = _LENGTH.unpack(self._take(_LENGTH.size))[0]
        message: dict[str, Any] = json.loads(self._take(size))
        return message

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self) -> None:
        space = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = self.channel.recvmsg(256 * 1024, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                self.descriptors.extend(received)
        if not data:
            raise EOFError
        self._buffer += data
