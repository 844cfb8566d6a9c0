"""Tools over a session: JSON-RPC inside `mcp` messages, as flows for the client and for a local host."""

from collections.abc import Generator, Mapping
from typing import Any

from envtorch.errors import EnvironmentFailed, EnvTorchError, InvalidAction, ProtocolError, Unsupported
from envtorch.protocol.arguments import shown
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.host import EnvironmentHost, Replies
from envtorch.protocol.jsonrpc import Code, JsonRpcRequest, RequestId, RpcError, decode, failure, success
from envtorch.protocol.messages import Mcp
from envtorch.protocol.requests import Asking
from envtorch.protocol.wire import Ask, mcp_reply
from envtorch.tools import Tool

__all__ = ["answer_tools", "ask_call", "ask_tools", "read_tools", "value_of"]


def ask_tools(format: Format = JSON) -> Asking[list[Tool]]:
    """Which tools there are."""
    result = yield from _ask("tools/list", {}, format)
    return read_tools(result.get("tools", []))


def ask_call(name: str, arguments: Mapping[str, Any] | None, format: Format = JSON) -> Asking[Any]:
    """What a tool answers."""
    if not isinstance(name, str):
        raise InvalidAction(f"a tool is called by its name, a text, not {shown(name)}")
    if not isinstance(arguments, Mapping | None):
        raise InvalidAction(f"the arguments of a tool are a dictionary, not {shown(arguments)}")
    asked = {"name": name, "arguments": dict(arguments or {})}
    result = yield from _ask("tools/call", asked, format, about=name)
    return value_of(result)


def read_tools(told: list[dict[str, Any]]) -> list[Tool]:
    """Tools as a server describes them, in either of the two spellings that there are."""
    return [
        Tool(
            name=tool["name"],
            description=tool.get("description") or "",
            input_schema=tool.get("input_schema") or tool.get("inputSchema") or {},
        )
        for tool in told
    ]


def value_of(result: Any) -> Any:
    """The answer itself, out of what MCP wraps around it."""
    return result.get("data", result) if isinstance(result, dict) else getattr(result, "data", result)


def answer_tools(host: EnvironmentHost, message: Mcp) -> Replies:
    """The reply of an environment in this process to a request for its tools."""
    id: RequestId = None
    try:
        request = decode(bytes(message.data))
        id = request.id
        return mcp_reply(success(id, (yield from _result(host, request))))
    except RpcError as error:
        return mcp_reply(failure(id, error))
    except EnvTorchError as error:
        return mcp_reply(failure(id, RpcError.of(error)))


def _result(host: EnvironmentHost, request: JsonRpcRequest) -> Generator[Any, Any, bytes]:
    if not host.has_tools:
        raise RpcError(Code.INTERNAL_ERROR, NO_TOOLS)
    if request.method == "tools/list":
        return b'{"tools":%b}' % (yield from host.list_tools())
    call = Call.with_arguments("call_tool", request.params["name"], request.params["arguments"])
    return (yield from host.call_tool(call))


NO_TOOLS = "Environment does not support MCP"


def _ask(method: str, params: Mapping[str, Any], format: Format, about: str = "") -> Asking[Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)}
    answer = yield Ask("mcp", encode_value(body, format, blame=InvalidAction))
    told = answer.expect("mcp")
    if told.get("error") is not None:
        raise _failed(told["error"], about)
    result = told.get("result")
    if method == "tools/list" and not isinstance(result, dict):
        raise ProtocolError(f"the server's answer to {method} is no object: {str(result)[:200]}")
    return result


def _failed(error: Mapping[str, Any], about: str) -> EnvTorchError:
    """A JSON-RPC error as the class that says whose fault it was."""
    message = str(error.get("message", "the server gave no reason"))
    if error.get("code") == Code.METHOD_NOT_FOUND or message == NO_TOOLS:
        return Unsupported(f"this environment has no tools: {message}")
    data = error.get("data")
    is_callers = isinstance(data, dict) and data.get("code") == InvalidAction.code
    if is_callers or error.get("code") == Code.INVALID_PARAMS or message.startswith("Unknown tool"):
        return InvalidAction(message)
    return EnvironmentFailed(f"the tool {about!r} failed: {message}" if about else message)
