"""OpenEnv's JSON-RPC messages as models."""

import enum
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_serializer

from envtorch.compat.types import BaseMessage
from envtorch.protocol.jsonrpc import Code as JsonRpcErrorCode
from envtorch.protocol.jsonrpc import JsonRpcRequest

__all__ = [
    "JsonRpcError",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "McpMethod",
    "WSMCPMessage",
    "WSMCPResponse",
]

_MESSAGES = {
    JsonRpcErrorCode.PARSE_ERROR: "Parse error",
    JsonRpcErrorCode.INVALID_REQUEST: "Invalid Request",
    JsonRpcErrorCode.METHOD_NOT_FOUND: "Method not found",
    JsonRpcErrorCode.INVALID_PARAMS: "Invalid params",
    JsonRpcErrorCode.INTERNAL_ERROR: "Internal error",
    JsonRpcErrorCode.SERVER_ERROR: "Server error",
}


class McpMethod(str, enum.Enum):  # noqa: UP042, its members print as OpenEnv's do
    """The methods of MCP that OpenEnv knows."""

    TOOLS_LIST = "tools/list"
    TOOLS_CALL = "tools/call"


class JsonRpcError(BaseModel):
    """Why a request failed."""

    code: int
    message: str
    data: Any = None

    @classmethod
    def from_code(cls, code: JsonRpcErrorCode, message: str | None = None, data: Any = None) -> Self:
        """An error with a code's usual text."""
        return cls(code=int(code), message=message or _MESSAGES[code], data=data)


class JsonRpcResponse(BaseModel):
    """The answer to a request: a result, or an error, never both."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: str | int | None = None
    result: Any = None
    error: JsonRpcError | None = None

    @model_serializer
    def _one_of_the_two(self) -> dict[str, Any]:
        told: dict[str, Any] = {"jsonrpc": self.jsonrpc, "id": self.id}
        if self.error is not None:
            return told | {"error": self.error.model_dump()}
        return told | {"result": self.result}

    @classmethod
    def success(cls, result: Any, request_id: str | int | None = None) -> Self:
        return cls(id=request_id, result=result)

    @classmethod
    def error_response(
        cls,
        code: JsonRpcErrorCode,
        message: str | None = None,
        data: Any = None,
        request_id: str | int | None = None,
    ) -> Self:
        return cls(id=request_id, error=JsonRpcError.from_code(code, message, data))


class WSMCPMessage(BaseMessage):
    type: Literal["mcp"] = "mcp"
    data: dict[str, Any]


class WSMCPResponse(BaseModel):
    type: Literal["mcp"] = "mcp"
    data: dict[str, Any] = Field(default_factory=dict)
