"""What the server and its processes say to each other: small MessagePack values, never pickles.

A session's frames are on a stream, each behind its length and the number of the call that it makes or
answers. The keeper's and the zygote's are packets.
"""

import array
import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from envtorch.errors import EnvTorchError, encodable, from_wire
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded, encode_value
from envtorch.protocol.wire import sent_details
from envtorch.server.runners.forked_process import end_if_forked

__all__ = [
    "HEAD",
    "NO_CALL",
    "CallFailed",
    "Died",
    "FrameHead",
    "FrameSocket",
    "Hello",
    "Kill",
    "NumberedCall",
    "Plan",
    "RawAnswer",
    "Ready",
    "Unfit",
    "ZygoteReady",
    "pack",
    "read_answer",
    "read_head",
    "read_note",
]

MAX_DESCRIPTORS = 128
"""How many a frame may carry; the kernel takes 253."""

MAX_FRAME_BYTES = 1 << 30
HEAD = struct.Struct(">IQ")
NO_CALL = 0
"""The number of frames that answer no call: `Hello` and `Ready`. Calls are numbered from 1."""
SHORT_BYTES = 1 << 13
MOST_AT_ONCE_BYTES = 1 << 18
ANCILLARY_BYTES = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)


class Value(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Anything that is said between these processes."""


class Plan(Value, frozen=True):
    """What a zygote loads, all of it by name."""

    source: str
    action: str
    observation: str
    state: str
    reset_observation: str | None
    name: str
    requires_reset: bool
    preludes: list[str]
    """Functions to call before anything else is loaded."""


# From a session's process.


class Hello(Value, frozen=True):
    """The process lives; nothing of the environment has run yet."""

    process: int


class Ready(Value, frozen=True):
    """The environment is built."""

    name: str
    has_tools: bool


class RawAnswer(Value, frozen=True):
    """Any other answer, as bytes."""

    data: bytes


class CallFailed(Value, frozen=True):
    """An error, as its code, message and details."""

    code: str | None
    message: str
    details: bytes
    exception: str
    """The class of what the environment raised."""
    trace: str

    @classmethod
    def of(cls, error: EnvTorchError, trace: str) -> "CallFailed":
        cause = error.__cause__ or error
        return cls(
            error.code,
            error.message,
            encode_value(sent_details(error)),
            type(cause).__name__,
            encodable(trace),
        )

    def error(self) -> EnvTorchError:
        error = from_wire(self.code, self.message, msgspec.json.decode(self.details))
        error.__cause__ = ChildTraceback(self.trace)
        return error


class ChildTraceback(Exception):
    """The traceback of another process, for the log."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


# Between the server and the keeper.


class Kill(Value, frozen=True):
    """End this process of yours."""

    process: int


class ZygoteReady(Value, frozen=True):
    """A zygote has loaded everything."""


class Unfit(Value, frozen=True):
    """No zygote can be had."""

    message: str


class Died(Value, frozen=True):
    """A process ended: with an exit status, or by a signal, which is then negative."""

    process: int
    status: int


Answer = Hello | Ready | Encoded | RawAnswer | CallFailed
Note = ZygoteReady | Unfit | Died

_pack = msgspec.msgpack.Encoder().encode
_calls = msgspec.msgpack.Decoder(Call)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_notes: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)
read_plan = msgspec.msgpack.Decoder(Plan).decode
read_kill = msgspec.msgpack.Decoder(Kill).decode


def pack(value: msgspec.Struct) -> bytes:
    return _pack(value)


def frame(value: msgspec.Struct, number: int) -> bytes:
    body = _pack(value)
    return HEAD.pack(len(body), number) + body


def read_answer(body: bytes) -> Answer:
    return _answers.decode(body)


def read_note(packet: bytes) -> Note:
    return _notes.decode(packet)


class FrameHead(NamedTuple):
    """What comes before a frame's body."""

    length: int
    number: int


def read_head(head: bytes) -> FrameHead:
    """Raises `ValueError` for a length that no process of ours sends."""
    read = FrameHead(*HEAD.unpack(head))
    if read.length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {read.length} bytes")
    return read


class NumberedCall(NamedTuple):
    """A call, and the number that its answer must have."""

    number: int
    call: Call


class FrameSocket:
    """A session process's end of its socket: blocking, and able to take descriptors.

    It belongs to the process that made it. One that was forked from that process has the socket too, and
    ends when it would use it.
    """

    def __init__(self, descriptor: int) -> None:
        self._process = os.getpid()
        self.socket = socket.socket(fileno=descriptor)
        self.socket.setblocking(True)
        self.descriptors: list[int] = []
        """Descriptors that came with the last call."""
        self._buffer = bytearray()

    def send(self, value: msgspec.Struct, number: int = NO_CALL) -> None:
        """Send the answer to the call of that number."""
        end_if_forked(self._process)
        self.socket.sendall(frame(value, number))

    def receive(self) -> NumberedCall:
        """The next call. Raises `EOFError` when the server has let go of this process."""
        end_if_forked(self._process)
        head = read_head(self._take(HEAD.size))
        return NumberedCall(head.number, _calls.decode(self._take(head.length)))

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill(size - len(self._buffer))
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self, missing: int) -> None:
        # Room for that much is allocated before anything is read: for short calls it must be little.
        room = min(max(missing, SHORT_BYTES), MOST_AT_ONCE_BYTES)
        data, ancillary, _, _ = self.socket.recvmsg(room, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                self.descriptors.extend(received)
        if not data:
            raise EOFError
        self._buffer += data

    def take_descriptors(self) -> Sequence[int]:
        taken, self.descriptors = self.descriptors, []
        return taken


def keep_only(descriptor: int) -> None:
    """Close every descriptor but this one and the three that every process has; stdin becomes empty."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
