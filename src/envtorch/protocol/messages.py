"""What a client may say: five messages, and how to read them from a frame.

Reading has two speeds. A well-formed frame is decoded once, straight into one of the structs below,
its action left as raw bytes. Only a frame that fails is looked at again, slowly, to say what is wrong
with it in the words OpenEnv clients know.
"""

import json
from typing import Any, NoReturn

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from envtorch.errors import EnvTorchError, InvalidAction, InvalidJSON, UnknownMessage

__all__ = [
    "Close",
    "Mcp",
    "Request",
    "ResetMessage",
    "StateMessage",
    "StepMessage",
    "decode",
    "invalid",
    "read_json",
    "write_json",
]

MAX_ERROR_BYTES = 64 * 1024
"""A report of what is wrong is not longer than this: a 50 MB mistake is not sent back."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class ResetMessage(_Message, tag="reset", frozen=True):
    """Begin an episode. `data` holds the keywords for the environment's `reset`."""

    data: dict[str, Any] = {}


class StepMessage(_Message, tag="step", frozen=True):
    """Take one action: `data` is the action itself, still JSON."""

    data: msgspec.Raw


class StateMessage(_Message, tag="state", frozen=True):
    """Tell where the episode stands."""


class Close(_Message, tag="close", frozen=True):
    """End the session. There is no reply."""


class Mcp(_Message, tag="mcp", frozen=True):
    """A JSON-RPC request for the environment's tools, still JSON."""

    data: msgspec.Raw


Request = ResetMessage | StepMessage | StateMessage | Close | Mcp

_WITH_DATA = (StepMessage, Mcp)
_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def decode(frame: str | bytes) -> Request:
    """The request in a frame. Raises `InvalidJSON`, `UnknownMessage` or `InvalidAction`."""
    try:
        request = _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _explain(frame, error) from None
    if isinstance(request, _WITH_DATA) and bytes(request.data)[:1] != b"{":
        raise _explain(frame, None)
    return request


class _Explained(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: str


class _WithOptions(_Explained):
    data: dict[str, Any] = {}


class _WithData(_Explained):
    data: dict[str, Any]


_SHAPES: dict[str, type[_Explained]] = {
    "reset": _WithOptions,
    "step": _WithData,
    "state": _Explained,
    "close": _Explained,
    "mcp": _WithData,
}


def _explain(frame: str | bytes, error: Exception | None) -> EnvTorchError:
    """Why `decode` could not read this frame."""
    try:
        message = read_json(frame)
    except InvalidJSON as invalid_json:
        return invalid_json
    if not isinstance(message, dict):
        return InvalidJSON(f"Invalid JSON: expected an object, got {_kind(message)}")
    kind = message.get("type", "")
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        return UnknownMessage(f"Unknown message type: {str(kind)[:200]}")
    try:
        shape.model_validate(message)
    except ValidationError as validation:
        return invalid(validation)
    return InvalidJSON(f"Invalid JSON: {error}")


def read_json(text: str | bytes) -> Any:
    """The JSON value in `text`, read strictly: NaN, deep nesting and broken UTF-8 are `InvalidJSON`."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidJSON("Invalid JSON: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise InvalidJSON(f"Invalid JSON: not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise InvalidJSON(f"Invalid JSON: {error}") from None


def write_json(value: Any) -> bytes:
    """A value as JSON, whatever text is in it: half a surrogate pair, from a peer, is no reason to fail."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def invalid(error: Exception, message: str = "Invalid message") -> InvalidAction:
    """What validation found, ready for the wire: every context is text, and nothing is huge.

    The values themselves are left out: the sender knows them, and a secret among them would enter logs.
    """
    if not isinstance(error, ValidationError):  # a validator's own bug is still about this input
        found = {"type": "validator_failed", "loc": [], "msg": repr(error)}
        return InvalidAction(message, errors=[found])
    text = error.json(include_input=False)
    if len(text) > MAX_ERROR_BYTES:
        text = error.json(include_input=False, include_context=False)
    errors: list[dict[str, Any]] = json.loads(text)[:100]
    if len(text) > MAX_ERROR_BYTES:  # the names of fields are the sender's, too
        errors = [_cut(found) for found in errors]
    return InvalidAction(message, errors=errors)


def _cut(found: dict[str, Any]) -> dict[str, Any]:
    """One error of a report that is too long, with its texts cut."""
    place = [part[:100] if isinstance(part, str) else part for part in found["loc"][:20]]
    return {**found, "loc": place, "msg": found["msg"][:500]}
