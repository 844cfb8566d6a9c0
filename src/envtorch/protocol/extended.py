"""The extended wire, `envtorch.v1`: what a client and a server of ours add to OpenEnv's.

Every request carries an `id`, echoed on its reply: replies may come out of order, and a repeated id gets
the stored reply instead of a second run. `ch` is the channel: one socket carries many sessions. A frame is
one message or a list of them. It is spoken in JSON or in MessagePack, as the subprotocol says.

| request | data | reply |
|---|---|---|
| `session` | `token`, `wait_s`, `grace_s` | `session`: id, token, grace, what it supports |
| `attach` | `token` | `session`, with the last id that was executed |
| `reset`, `step`, `state`, `mcp` | as on the base wire | `observation`, `state`, `mcp` |
| `steps` | `ch`, `actions` or their `columns` | `observations`: columns; what is slower, each by itself |
| `fork` | `n` | `forked`: the id, token and grace of each of n new sessions, copies of this one |
| `cancel` | `id` | `cancelled`; the request itself is answered with `CANCELLED` |
| `close` | | `closed` |

`timeout_s` beside `data` is a deadline that the server keeps. `ack` tells it which replies of the session are
not waited for, and need not be kept. The server says `draining` by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from envtorch.errors import EnvTorchError, InvalidAction, InvalidJSON, ProtocolError, UnknownMessage
from envtorch.protocol import messages
from envtorch.protocol.arguments import LONGEST_S
from envtorch.protocol.batch import Steps
from envtorch.protocol.formats import JSON, MSGPACK, READ_ERRORS, Format
from envtorch.protocol.wire import Reply, sent_details

__all__ = [
    "FORMATS",
    "MAX_TOKEN_LENGTH",
    "MOST_IN_FRAME",
    "NOTHING",
    "Attach",
    "Cancel",
    "ForkRequest",
    "Message",
    "Open",
    "control_data",
    "error_reply",
    "read_envelope",
    "read_frame",
    "simulation_request",
    "write_frame",
]

FORMATS: Mapping[str, Format] = {"envtorch.v1": JSON, "envtorch.v1+msgpack": MSGPACK}
"""The subprotocols, and the format each is spoken in."""

NOTHING = msgspec.Raw(b"")

T = TypeVar("T")


Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that both formats can carry back."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message in either direction, its data still encoded."""

    type: str
    id: Whole | None = None
    ch: Whole = 0
    data: msgspec.Raw = NOTHING
    timeout_s: float | None = None
    ack: Whole | None = None
    """The sender waits for no reply of this session to a request up to this id."""

    @classmethod
    def of(cls, reply: Reply, *, id: int | None, ch: int) -> "Message":
        return cls(reply.type, id=id, ch=ch, data=msgspec.Raw(reply.data))


MAX_TOKEN_LENGTH = 512
"""How many characters the token or the id of a session may have."""

Token = Annotated[str, msgspec.Meta(max_length=MAX_TOKEN_LENGTH)]
Wait = Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_S)]


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client asks for when it opens a session."""

    token: Token | None = None
    """The token that shall open the session, so that asking twice opens one; the server's, if left out."""
    wait_s: Wait = 0.0
    """How long to wait, in turn, for a free slot."""
    grace_s: Wait | None = None
    """How long the session shall outlive its socket; the server has its own limit."""


class Attach(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client shows to take up a session that lost its socket."""

    token: Token


class Cancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which request to take back."""

    id: Whole


class ForkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many copies of the session to make."""

    n: Annotated[int, msgspec.Meta(ge=1)] = 1


_KINDS = (Open, Attach, Cancel, ForkRequest, Steps, dict[str, Any])
_readers: dict[str, dict[Any, Any]] = {
    format.name: {kind: format.reader(kind) for kind in _KINDS} for format in FORMATS.values()
}
_frame_readers = {format.name: format.reader(list[Message] | Message).decode for format in FORMATS.values()}
_envelope_readers = {format.name: format.reader(Message).decode for format in FORMATS.values()}


MOST_IN_FRAME = 16_384
"""How many messages a frame may hold: all of them are answered before anything else is read."""


def read_frame(frame: bytes, format: Format) -> Sequence[Message]:
    """The messages in a frame. Raises `InvalidJSON` when it holds anything else, and `ProtocolError` when
    there are too many of them."""
    try:
        found = _frame_readers[format.name](frame)
    except READ_ERRORS as error:
        raise InvalidJSON(f"Invalid message: {error}") from None
    if type(found) is not list:
        return [found]
    if len(found) > MOST_IN_FRAME:
        raise ProtocolError(f"a frame of {len(found)} messages: send at most {MOST_IN_FRAME} in one")
    return found


def read_envelope(frame: bytes, format: Format) -> Message | None:
    """The one message in a frame, without reading its data; None for a batch, or no message at all."""
    try:
        found: Message = _envelope_readers[format.name](frame)
    except READ_ERRORS:
        return None
    return found


def write_frame(batch: Sequence[Message], format: Format) -> bytes:
    """One message as a frame, or several as one frame."""
    return format.write(batch[0] if len(batch) == 1 else list(batch))


def simulation_request(
    message: Message, format: Format
) -> messages.ResetMessage | messages.StepMessage | messages.StateMessage:
    """`reset`, `step` or `state`, as the base wire's values."""
    match message.type:
        case "step":
            if not _has_data(message):
                raise InvalidAction("step has no data: it is the action")
            return messages.StepMessage(message.data)
        case "reset":
            return messages.ResetMessage(control_data(message, dict[str, Any], format))
        case "state":
            return messages.StateMessage()
    raise UnknownMessage(f"Unknown message type: {message.type[:200]}")


def control_data(message: Message, kind: type[T], format: Format) -> T:
    """The data of a message as a value of `kind`; none at all is an empty one."""
    raw = bytes(message.data) if _has_data(message) else format.write({})
    found: T = _read(raw, kind, format, InvalidAction)
    return found


def _read(raw: str | bytes, kind: Any, format: Format, blame: type[EnvTorchError]) -> Any:
    try:
        return _readers[format.name][kind].decode(raw)
    except READ_ERRORS as error:
        raise blame(f"Invalid message: {error}") from None


def _has_data(message: Message) -> bool:
    return len(bytes(message.data)) > 0


def error_reply(error: EnvTorchError, format: Format) -> Reply:
    """An error with all its details: a peer of ours may know them."""
    data = {"message": error.message, "code": error.code or "INTERNAL_ERROR", **sent_details(error)}
    if format is JSON:
        return Reply("error", messages.write_json(data))
    return Reply("error", format.write(data), format)
