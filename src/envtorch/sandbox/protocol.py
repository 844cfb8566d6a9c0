"""The messages of the owner and a sandbox, as bytes and as values. No I/O.

Every byte from a sandbox is hostile. A frame begins with a header: size, kind and the identifier of the
request that it belongs to. All three are checked before anything of the frame is decoded, and what is decoded
must have exactly the declared shape. Anything else is `Nonsense`, and the sandbox that sent it is ended.
"""

import errno
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from .guest.guest_wire import CALL_LIMIT, HEADER, KINDS, PACKET_LIMIT, VALUE_LIMIT, has_too_many_values

__all__ = [
    "CALL_LIMIT",
    "Control",
    "Forked",
    "FrameReader",
    "GuestHello",
    "Message",
    "Nonsense",
    "OwnerCall",
    "RunResult",
    "Shared",
    "Variables",
    "decode_control",
    "encode",
    "frame",
    "packet",
    "run_request",
]

_LENGTH = struct.Struct(">I")
_MEGABYTE = 1024 * 1024
_LEFTOVER_BYTES = 64 * _MEGABYTE
_LEFTOVER_FRAMES = 10_000
"""What may arrive that belongs to an earlier request, while one request is served."""


class Nonsense(Exception):
    """The sandbox sent something that no interpreter of ours would send."""


class Raised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception, described."""

    type: str
    message: str
    traceback: str


class RunResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run has ended."""

    outcome: str
    exit_status: Annotated[int, msgspec.Meta(ge=0, le=255)]
    value: str | None
    json: str | None
    exception: Raised | None
    parsed: bool
    stdout: str
    stderr: str
    truncated: bool
    duration_s: float
    cpu_s: float
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class OwnerCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent's code wants an exposed function called."""

    call: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable, described."""

    type: str
    repr: str


class Variables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names the agent has defined."""

    variables: dict[str, Described]


class Forked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parent's answer to a fork."""

    error: str | None


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shared text has been read, or why not."""

    error: str | None


class GuestHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a fork."""


Message = RunResult | OwnerCall | Variables | Forked | Shared | GuestHello
_CLASSES: Mapping[int, type[Message]] = {
    KINDS["result"]: RunResult,
    KINDS["call"]: OwnerCall,
    KINDS["variables"]: Variables,
    KINDS["forked"]: Forked,
    KINDS["shared"]: Shared,
    KINDS["hello"]: GuestHello,
}
_SIZES: Mapping[type[Message], int] = {
    OwnerCall: CALL_LIMIT,
    Variables: 8 * _MEGABYTE,
    Forked: 65536,
    Shared: 65536,
    GuestHello: 1024,
}
_DECODERS: Mapping[type[Message], Callable[[bytes], Message]] = {
    kind: msgspec.json.Decoder(kind).decode for kind in _CLASSES.values()
}


class Control(msgspec.Struct, frozen=True):
    """What a supervisor, a zygote or an init says. They are ours; a mistake there is no crash here."""

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


def packet(request: Any) -> bytes:
    """`request` as one packet for an init. Raises `OSError` for what is longer than an init reads."""
    data = encode(request)
    if len(data) > PACKET_LIMIT:
        raise OSError(
            errno.E2BIG,
            f"the request takes {len(data)} bytes, and {PACKET_LIMIT} are allowed: shorten its path, pattern "
            "or command, or put what is long into a file",
        )
    return data


def decode_control(data: bytes) -> Control:
    """The event in one packet. Raises `Nonsense`."""
    try:
        return _control_decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Nonsense(f"a packet of {len(data)} bytes is no event: {error}") from None


class FrameReader:
    """Cuts a stream of hostile bytes into the messages of one request at a time.

    Frames of other requests are left out without being kept or decoded. `output_bytes` is what is kept of
    each output stream: a result has at most that much twice, escaped, and its texts.
    """

    def __init__(self, output_bytes: int = _MEGABYTE) -> None:
        self._buffer = bytearray()
        self._skip = 0
        self._leftover_frames = self._leftover_bytes = 0
        self._sizes = {**_SIZES, RunResult: 12 * output_bytes + 2 * _MEGABYTE}
        self._largest = max(self._sizes.values())

    def begin(self) -> None:
        """A new request is made: count from now on what belongs to earlier ones."""
        self._leftover_frames = self._leftover_bytes = 0

    @property
    def has_more(self) -> bool:
        """Whether something has arrived that has not been read."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        self._buffer += data

    def next(self, request: str, allowed: Sequence[type[Message]]) -> Message | None:
        """The next whole message of this request, None when more bytes are needed. Raises `Nonsense`."""
        wanted = request.encode()
        while len(self._buffer) >= HEADER.size:
            size, number, identifier = HEADER.unpack_from(self._buffer)
            kind = _CLASSES.get(number)
            if kind is None or size > self._largest:
                raise Nonsense(f"a frame of kind {number} and {size} bytes is announced")
            if identifier != wanted:
                self._leave_out(HEADER.size + size)
                continue
            if kind not in allowed:
                raise Nonsense(f"{kind.__name__} is no answer to this request")
            if size > self._sizes[kind]:
                raise Nonsense(
                    f"a {kind.__name__} of {size} bytes is announced, and {self._sizes[kind]} are allowed"
                )
            end = HEADER.size + size
            if len(self._buffer) < end:
                return None
            data = bytes(memoryview(self._buffer)[HEADER.size : end])
            del self._buffer[:end]
            return _decode(kind, data)
        return None

    def _leave_out(self, size: int) -> None:
        self._leftover_frames += 1
        self._leftover_bytes += size
        if self._leftover_frames > _LEFTOVER_FRAMES or self._leftover_bytes > _LEFTOVER_BYTES:
            raise Nonsense("it sends frames that belong to no request")
        self._skip = max(0, size - len(self._buffer))
        del self._buffer[:size]


def _decode(kind: type[Message], data: bytes) -> Message:
    if kind in (OwnerCall, Variables) and has_too_many_values(data):
        raise Nonsense(f"a {kind.__name__} has more than {VALUE_LIMIT} values")
    try:
        return _DECODERS[kind](data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Nonsense(f"a frame of {len(data)} bytes is no {kind.__name__}: {error}") from None


def run_request(identifier: str, code: str, functions: Sequence[str]) -> bytes:
    """The frame that asks for a run."""
    return frame({"type": "run", "id": identifier, "code": code, "functions": list(functions)})
