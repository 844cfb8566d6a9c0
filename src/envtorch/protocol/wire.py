"""The base wire: exactly OpenEnv's `/ws` frames, both ways.

A client that negotiates nothing gets these frames and no others: one reply per request, in order,
no identifiers, and no key inside `data.observation` that the environment did not put there.
"""

from typing import Any

import msgspec

from envtorch.errors import EnvTorchError, ProtocolError, encodable, from_wire
from envtorch.protocol.arguments import shown
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.formats import BY_NAME, JSON, READ_ERRORS, Format
from envtorch.protocol.messages import write_json

__all__ = [
    "Answer",
    "Ask",
    "Reply",
    "error_data",
    "error_reply",
    "mcp_reply",
    "observation_frame",
    "observation_reply",
    "sent_details",
    "state_reply",
]

# What a server says.


class Reply(msgspec.Struct, frozen=True):
    """One reply: its type, and its data already encoded."""

    type: str
    data: bytes
    format: Format = JSON

    @property
    def size(self) -> int:
        """How many bytes its data has."""
        return len(self.data)

    def frame(self) -> bytes:
        return b'{"type":"%b","data":%b}' % (_NAMES.get(self.type) or self.type.encode(), self.data)


_NAMES = {name: name.encode() for name in ("observation", "state", "error", "mcp")}


def observation_reply(encoded: Encoded) -> Reply:
    """The reply to `reset` and `step`."""
    return Reply("observation", encoded.data(), BY_NAME[encoded.format])


def observation_frame(encoded: Encoded) -> bytes:
    """The reply to `reset` and `step`, as its frame."""
    return b'{"type":"observation","data":%b}' % encoded.data()


def state_reply(state: bytes, format: Format = JSON) -> Reply:
    """The reply to `state`."""
    return Reply("state", state, format)


def mcp_reply(response: bytes) -> Reply:
    """The reply to `mcp`: a JSON-RPC response."""
    return Reply("mcp", response)


_BASE_DETAILS = ("errors", "active_sessions", "max_sessions", "factory_name")
"""What OpenEnv tells beside an error's message and code."""


def error_data(error: EnvTorchError) -> dict[str, Any]:
    """What a peer on the base wire is told of an error."""
    told = {key: value for key, value in sent_details(error).items() if key in _BASE_DETAILS}
    return {"message": error.message, "code": error.code or "SESSION_ERROR", **told}


def sent_details(error: EnvTorchError) -> dict[str, Any]:
    """The details of an error, as both formats can carry them: any other value is sent as its `repr`.

    An author may put anything into the details of an error, and the error must reach the caller.
    """
    return {
        name: value if _can_be_sent(value) else encodable(shown(value))
        for name, value in error.details.items()
    }


def _can_be_sent(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
        msgspec.json.encode(value)
    except Exception:  # what encodes a value may be the author's code
        return False
    return True


def error_reply(error: EnvTorchError) -> Reply:
    """The reply to any request that failed."""
    return Reply("error", write_json(error_data(error)))


# What a client says, and how it reads the answer.


class Ask(msgspec.Struct, frozen=True):
    """One request on its way out: its type, and its data already encoded."""

    type: str
    data: bytes | None = None

    def frame(self) -> bytes:
        if self.data is None:
            return b'{"type":"%b"}' % self.type.encode()
        return b'{"type":"%b","data":%b}' % (self.type.encode(), self.data)


class Answer(msgspec.Struct, frozen=True):
    """One reply as a client reads it."""

    type: str
    data: dict[str, Any] = {}

    @classmethod
    def read(cls, frame: str | bytes) -> "Answer":
        """The reply in a frame. Raises `ProtocolError` for anything else."""
        try:
            return _answers.decode(frame)
        except READ_ERRORS as error:
            raise ProtocolError(f"the server's reply cannot be read: {error}") from error

    def expect(self, type: str) -> dict[str, Any]:
        """The data of a reply of this type. An error reply is raised, as the class of its code."""
        if self.type == type:
            return self.data
        if self.type == "error":
            raise self.error()
        raise ProtocolError(f"expected a reply of type {type!r}, got {self.type!r}")

    def error(self) -> EnvTorchError:
        """The error that an error reply reports."""
        details = dict(self.data)
        message = details.pop("message", "the server gave no reason")
        return from_wire(details.pop("code", None), str(message), details)


_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
