"""One message of MCP, read from JSON and checked."""

import enum
import math
from dataclasses import dataclass, field
from typing import Any

from envtorch.errors import InvalidJSON
from envtorch.protocol.jsonrpc import LONGEST_ID, Code, RequestId, RpcError
from envtorch.protocol.messages import read_json

__all__ = [
    "HANDSHAKE_REVISIONS",
    "STATELESS_REVISION",
    "InvalidMessage",
    "McpMessage",
    "McpMessageKind",
    "read",
    "take",
]

HANDSHAKE_REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions of MCP that begin with `initialize`, newest first."""

STATELESS_REVISION = "2026-07-28"
"""The revision in which every request stands for itself: no `initialize`, no session id."""

BATCH_REVISIONS = frozenset({"2025-03-26", "2024-11-05"})
"""The revisions in which a body may be a list of messages."""


class McpMessageKind(enum.Enum):
    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"


class InvalidMessage(RpcError):
    """What was sent is no message; `id` is the one it has, if any."""

    def __init__(self, code: Code, message: str, id: RequestId = None) -> None:
        super().__init__(code, message)
        self.id = id


@dataclass(frozen=True, slots=True)
class McpMessage:
    """A request, a notification, or the response to a request of ours."""

    kind: McpMessageKind
    method: str = ""
    id: RequestId = None
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def meta(self) -> dict[str, Any]:
        """What the sender says about the request, beside its parameters."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}


def read(body: bytes) -> Any:
    """The JSON in a body. Raises `InvalidMessage`."""
    try:
        return read_json(body)
    except InvalidJSON as error:
        raise InvalidMessage(Code.PARSE_ERROR, f"Parse error: {error.message}") from None


def take(value: Any) -> McpMessage:
    """A value as a message. Raises `InvalidMessage`, under the id of the request where it has one."""
    if not isinstance(value, dict):
        raise InvalidMessage(Code.INVALID_REQUEST, "Invalid request: a message is an object")
    id = value.get("id")
    known = id if _is_id(id) else None
    if value.get("jsonrpc") != "2.0":
        raise InvalidMessage(Code.INVALID_REQUEST, 'Invalid request: "jsonrpc" must be "2.0"', known)
    if "method" not in value:
        if known is not None and ("result" in value) != ("error" in value):
            return McpMessage(McpMessageKind.RESPONSE, id=known)
        raise InvalidMessage(Code.INVALID_REQUEST, 'Invalid request: "method" is missing', known)
    method, params = value["method"], value.get("params")
    if not isinstance(method, str):
        raise InvalidMessage(Code.INVALID_REQUEST, 'Invalid request: "method" must be a string', known)
    if "id" in value and known is None:
        raise InvalidMessage(
            Code.INVALID_REQUEST,
            f'Invalid request: "id" must be a number, or a string of at most {LONGEST_ID} characters',
        )
    if params is not None and not isinstance(params, dict):
        raise InvalidMessage(Code.INVALID_PARAMS, 'Invalid params: "params" must be an object', known)
    kind = McpMessageKind.REQUEST if "id" in value else McpMessageKind.NOTIFICATION
    return McpMessage(kind, method, known, params or {})


def _is_id(id: Any) -> bool:
    """Whether an id can be echoed: a number that JSON cannot write back, such as 1e400, cannot."""
    if isinstance(id, float):
        return math.isfinite(id)
    if isinstance(id, str):
        return len(id) <= LONGEST_ID
    return isinstance(id, int) and not isinstance(id, bool)
