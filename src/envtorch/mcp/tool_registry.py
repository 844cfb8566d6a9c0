"""The tools of one environment: those of its FastMCP server, and those that belong to one mode."""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, get_type_hints
from uuid import uuid4

import pydantic
from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import NotFoundError, ValidationError
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool as ServerTool

from envtorch.settings import ServerMode
from envtorch.tools import RESERVED_TOOL_NAMES, CallToolResult, Tool, ToolError, ToolErrorType
from envtorch.types import DescribedTool

__all__ = ["ToolRegistry", "failure", "session_client"]


class ToolRegistry:
    """Finds and calls tools.

    The server is called directly, with no transport in between: what a tool raises keeps its class, and
    a call costs what the tool costs.
    """

    def __init__(self, server: FastMCP) -> None:
        self.server = server
        self._of_mode: dict[str, dict[ServerMode, ServerTool]] = {}
        self._sessions: dict[asyncio.AbstractEventLoop, ToolSession] = {}

    def add(self, function: Callable[..., Any], mode: ServerMode | None) -> None:
        """Make a function a tool: of one mode, or of the server and so of both."""
        refuse_reserved([function.__name__])
        if mode is None:
            self.server.add_tool(ServerTool.from_function(function))
        else:
            self._of_mode.setdefault(function.__name__, {})[mode] = ServerTool.from_function(function)

    async def tools(self, mode: ServerMode) -> dict[str, ServerTool]:
        """The tools that there are in a mode, by name."""
        served = {tool.name: tool for tool in await self.server.list_tools()}
        own = {name: by_mode[mode] for name, by_mode in self._of_mode.items() if mode in by_mode}
        return {**{name: tool for name, tool in served.items() if name not in self._of_mode}, **own}

    async def describe(self, mode: ServerMode) -> list[Tool]:
        """The tools of a mode as values."""
        return [_described(tool) for tool in (await self.tools(mode)).values()]

    async def call(
        self, name: str, arguments: Mapping[str, Any], mode: ServerMode, timeout_s: float
    ) -> CallToolResult:
        """What a tool answered. Raises what the tool raised, or why it could not be called."""
        async with asyncio.timeout(timeout_s):
            if name not in self._of_mode:
                return await self._call_served(name, dict(arguments))
            tool = self._of_mode[name].get(mode)
            if tool is None:
                raise NotFoundError(f"Unknown tool: '{name}'")
            with _telling_apart(tool):
                return _result(await tool.run(dict(arguments)))

    async def _call_served(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        tool = await self.server.get_tool(name)
        if tool is None or not _wants_context(tool):
            with _telling_apart(tool):
                return _result(await self.server.call_tool(name, arguments))
        # FastMCP keeps what a tool stores in its context by session, so there has to be one.
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            self._sessions[loop] = await ToolSession.open(self.server)
        with _telling_apart(tool):
            return await self._sessions[loop].call(name, arguments)

    async def close(self) -> None:
        """End the sessions of this loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def functions(self, mode: ServerMode) -> dict[str, Callable[..., Any]]:
        """The tools that are plain functions, to be called as such."""
        tools = await self.tools(mode)
        found = ((name, getattr(tool, "fn", None)) for name, tool in tools.items())
        return {name: function for name, function in found if callable(function)}


@dataclass(frozen=True, slots=True)
class ToolSession:
    """A session with a FastMCP server in this process. What a tool raises keeps its class, as without one."""

    client: Client[Any]
    errors: "_CallErrors"

    @classmethod
    async def open(cls, server: FastMCP) -> "ToolSession":
        errors = next((one for one in server.middleware if isinstance(one, _CallErrors)), None)
        if errors is None:
            errors = _CallErrors()
            server.add_middleware(errors)
        return cls(await session_client(server).__aenter__(), errors)  # type: ignore[no-untyped-call]

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """What a tool answered. Raises what the tool raised."""
        call_id = uuid4().hex
        with self.errors.of(call_id) as raised:
            answer = await self.client.call_tool_mcp(name, arguments, meta={CALL_ID: call_id})
        if getattr(answer, "is_error" if hasattr(answer, "is_error") else "isError"):
            told = RuntimeError("; ".join(getattr(part, "text", "") for part in answer.content))
            raise raised.pop() if raised else told
        return _result(_FromClient(answer))

    async def close(self) -> None:
        await self.client.__aexit__(None, None, None)  # type: ignore[no-untyped-call]


CALL_ID = "envtorch/call"
"""The key, in the `_meta` of a call, under which the middleware finds whose call it is."""


class _CallErrors(Middleware):
    """Keeps what tools raised, by the id of the call: a client is told the text only."""

    def __init__(self) -> None:
        self._raised: dict[str, list[Exception]] = {}

    @contextmanager
    def of(self, call_id: str) -> Iterator[list[Exception]]:
        """Where the error of a call is found, once it has been answered."""
        self._raised[call_id] = []
        try:
            yield self._raised[call_id]
        finally:
            del self._raised[call_id]

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        try:
            return await call_next(context)
        except Exception as error:
            request = context.fastmcp_context.request_context
            meta = request.meta if request is not None else None
            sent = (
                meta if isinstance(meta, dict) else getattr(meta, "model_extra", None) or {}
            )  # FastMCP 4, 3
            self._raised.get(sent.get(CALL_ID, ""), []).append(error)
            raise


class ToolRaised(Exception):
    """The tool's own code raised what an argument of the wrong type would raise, too."""


def session_client(server: FastMCP) -> Client[Any]:
    """A client that keeps one session with the server, in which its tools find what they stored.

    From FastMCP 4 on a client does that only in the revisions of MCP that begin with a handshake.
    """
    if "mode" in signature(Client.__init__).parameters:
        return Client(server, mode="legacy")
    return Client(server)


@contextmanager
def _telling_apart(tool: ServerTool | None) -> Iterator[None]:
    """Tell a validation error of the tool's own code from one of its arguments."""
    try:
        yield
    except (ValidationError, pydantic.ValidationError) as error:
        function = inspect.unwrap(getattr(tool, "fn", None) or _telling_apart)
        code = getattr(function, "__code__", None)
        if any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise ToolRaised(str(error)) from error
        raise


def _described(tool: ServerTool) -> Tool:
    """A tool with all that its author says about it."""
    told = tool.to_mcp_tool().model_dump(mode="json", by_alias=True, exclude_none=True)
    return DescribedTool(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.parameters,
        title=told.get("title"),
        output_schema=told.get("outputSchema"),
        annotations=told.get("annotations"),
        icons=told.get("icons"),
        meta=told.get("_meta"),
    )


class _FromClient:
    """A client's answer, in the spelling of the server's; the two differ between versions."""

    def __init__(self, answer: Any) -> None:
        self.content = answer.content
        spelling = "structured_content" if hasattr(answer, "structured_content") else "structuredContent"
        self.structured_content = getattr(answer, spelling)
        self.meta = answer.meta


def _wants_context(tool: ServerTool) -> bool:
    function = getattr(tool, "fn", None)
    try:
        hints = get_type_hints(function) if function is not None else {}
    except (NameError, TypeError):
        return True  # it cannot be ruled out
    return Context in hints.values()


def refuse_reserved(names: list[str]) -> None:
    """An agent must not find the simulation's controls among its tools."""
    taken = sorted(RESERVED_TOOL_NAMES.intersection(names))
    if taken:
        raise ValueError(f"{', '.join(taken)}: reserved, and not to be used as names of tools")


def _result(answer: Any) -> CallToolResult:
    structured = answer.structured_content
    meta = answer.meta
    wrapped = bool(((meta or {}).get("fastmcp") or {}).get("wrap_result"))
    data = structured.get("result") if wrapped and structured is not None else structured
    return CallToolResult(content=list(answer.content), structured_content=structured, meta=meta, data=data)


def failure(error: BaseException) -> ToolError:
    """Why a tool gave no result, as the agent is told."""
    kind = ToolErrorType.EXECUTION_ERROR
    if isinstance(error, NotFoundError):
        kind = ToolErrorType.TOOL_NOT_FOUND
    elif isinstance(error, ValidationError | pydantic.ValidationError):
        kind = ToolErrorType.INVALID_ARGS
    elif isinstance(error, TimeoutError):
        kind = ToolErrorType.TIMEOUT
    return ToolError(error_type=kind, message=str(error) or repr(error))
