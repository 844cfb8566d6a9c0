"""What the owner and a sandbox say to each other, as bytes and as values. No I/O.

Every byte from a sandbox is hostile. A frame is a length and a JSON object of one of the types below, of
exactly the declared shape; anything else is `Nonsense`, and the sandbox that spoke it is ended.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

__all__ = [
    "FRAME_LIMIT",
    "Call",
    "Control",
    "Forked",
    "Framer",
    "Hello",
    "Message",
    "Nonsense",
    "RunResult",
    "Shared",
    "Variables",
    "decode",
    "decode_control",
    "encode",
    "frame",
    "run_request",
]

FRAME_LIMIT = 32 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class Nonsense(Exception):
    """The sandbox sent something that no interpreter of ours would send."""


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """What a sandbox may say; `id` repeats the request it belongs to."""

    id: str


class Raised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception, described."""

    type: str
    message: str
    traceback: str


class RunResult(Said, frozen=True, tag="result"):
    """A run has ended."""

    outcome: str
    exit_status: int
    value: str | None
    json: str | None
    exception: Raised | None
    stdout: str
    stderr: str
    truncated: bool
    duration_s: float
    cpu_s: float
    memory_bytes: int


class Call(Said, frozen=True, tag="call"):
    """The agent's code wants an exposed function called."""

    call: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable, described."""

    type: str
    repr: str


class Variables(Said, frozen=True, tag="variables"):
    """The names the agent has defined."""

    variables: dict[str, Described]


class Forked(Said, frozen=True, tag="forked"):
    """The parent's answer to a fork."""

    error: str | None


class Shared(Said, frozen=True, tag="shared"):
    """A shared text has been taken in, or why not."""

    error: str | None


class Hello(Said, frozen=True, tag="hello"):
    """The first word of a fork."""


Message = RunResult | Call | Variables | Forked | Shared | Hello
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Control(msgspec.Struct, frozen=True):
    """What a keeper, a zygote or an init says. They are ours; a mistake there is no crash here."""

    event: str
    message: str = ""
    errno: int | None = None
    pid: int = 0
    job: str = ""
    status: int = 0
    cpu_s: float = 0.0
    memory_bytes: int = 0
    layers: dict[str, str] = {}
    why_no_namespaces: str = ""


_control_decoder: msgspec.json.Decoder[Control] = msgspec.json.Decoder(Control)
_encoder = msgspec.json.Encoder()


def encode(message: Any) -> bytes:
    """`message` as JSON. Raises `TypeError` for what JSON cannot say."""
    return _encoder.encode(message)


def frame(message: Any) -> bytes:
    """`message` as one frame for the interpreter."""
    data = encode(message)
    return _LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Message:
    """The message in one frame. Raises `Nonsense`."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Nonsense(f"a frame of {len(data)} bytes is no message: {error}") from None


def decode_control(data: bytes) -> Control:
    """The event in one packet. Raises `Nonsense`."""
    try:
        return _control_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Nonsense(f"a packet of {len(data)} bytes is no event: {error}") from None


class Framer:
    """Cuts a stream of hostile bytes into frames."""

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next whole message, as long as there is one. Raises `Nonsense`."""
        if len(self._buffer) < _LENGTH.size:
            raise StopIteration
        (size,) = _LENGTH.unpack_from(self._buffer)
        if size > self._limit:
            raise Nonsense(f"a frame of {size} bytes is announced, and {self._limit} are allowed")
        end = _LENGTH.size + size
        if len(self._buffer) < end:
            raise StopIteration
        data = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return decode(data)


def run_request(identifier: str, code: str, functions: Sequence[str]) -> bytes:
    """The frame that asks for a run."""
    return frame({"type": "run", "id": identifier, "code": code, "functions": list(functions)})
