"""JSON-RPC 2.0, as OpenEnv's `/mcp` speaks it: read a request, write a response."""

import enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from envtorch.errors import EnvTorchError, InvalidAction, InvalidJSON, shortened
from envtorch.protocol.messages import read_json, write_json

__all__ = ["LONGEST_ID", "Code", "JsonRpcRequest", "RequestId", "RpcError", "decode", "failure", "success"]

RequestId = str | int | float | None
"""What a request is answered under."""

LONGEST_ID = 512
"""How many characters the id of a request may have."""


class Code(enum.IntEnum):
    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    SERVER_ERROR = -32000
    HEADER_MISMATCH = -32020
    UNSUPPORTED_PROTOCOL_VERSION = -32022


class RpcError(Exception):
    """A failed request, as JSON-RPC reports it."""

    def __init__(self, code: Code, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, shortened(message), data

    @classmethod
    def of(cls, error: EnvTorchError) -> "RpcError":
        """An error of ours: the environment's are internal errors, the server's own carry details.

        The caller's mistakes are internal errors too, as in OpenEnv; `data` has their code.
        """
        if error.code in ("CAPACITY_REACHED", "FACTORY_ERROR"):
            return cls(Code.SERVER_ERROR, error.message, error.details or None)
        data = {"code": error.code} if isinstance(error, InvalidAction) else None
        return cls(Code.INTERNAL_ERROR, error.message, data)


class JsonRpcRequest(BaseModel):
    """One request. The class's name is part of OpenEnv's wire: it stands in the error texts."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = {}
    id: Annotated[str, Field(max_length=LONGEST_ID)] | int | FiniteFloat | None = None


def decode(text: str | bytes, *, parse_error: str = "Parse error") -> JsonRpcRequest:
    """The request in `text`. Raises `RpcError`, whose id is unknown and therefore null."""
    try:
        message = read_json(text)
    except InvalidJSON as error:
        detail = error.message.removeprefix("Invalid JSON: ")
        raise RpcError(Code.PARSE_ERROR, parse_error.format(detail)) from None
    try:
        return JsonRpcRequest.model_validate(message)
    except ValidationError as error:
        raise RpcError(Code.INVALID_REQUEST, f"Invalid request: {error}") from None


def success(id: RequestId, result: bytes) -> bytes:
    """A response that carries a result, already JSON."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (write_json(id), result)


def failure(id: RequestId, error: RpcError) -> bytes:
    """A response that carries an error."""
    body = {"code": int(error.code), "message": error.message, "data": error.data}
    return write_json({"jsonrpc": "2.0", "id": id, "error": body})
