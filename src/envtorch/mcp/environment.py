"""`MCPEnvironment`: an environment whose actions are calls of tools."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastmcp import Client, FastMCP

from envtorch.env import Environment, Rubric, Transform
from envtorch.mcp.tool_registry import ToolRegistry, failure, refuse_reserved, session_client
from envtorch.settings import ServerMode
from envtorch.tools import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from envtorch.types import Observation

__all__ = ["MCP_TOOL_CALL_TIMEOUT", "MCPEnvironment", "get_server_tools"]

MCP_TOOL_CALL_TIMEOUT = 30.0
"""How long a tool may take, in seconds, when the step says nothing else."""

F = TypeVar("F", bound=Callable[..., Any])


class MCPEnvironment(Environment[Any, Any, Any]):
    """An environment on a FastMCP server: `ListToolsAction` and `CallToolAction` are understood.

    Write `reset`, `state`, and `_step_impl` for every other action. A tool call is a step like any
    other, by whichever door it comes: the transform and the rubric see it.
    """

    DEFAULT_CLASSES = (CallToolAction, CallToolObservation)

    _mode: str | None = None
    """Which tools there are: "simulation" or "production"."""

    supports_code_mode = True

    def __init__(
        self,
        mcp_server: FastMCP,
        transform: Transform[Any] | None = None,
        rubric: Rubric | None = None,
    ) -> None:
        super().__init__(transform=transform, rubric=rubric)
        self.mcp_server: FastMCP | None = mcp_server
        self._registry = ToolRegistry(mcp_server)
        refuse_reserved([tool.name for tool in _now(mcp_server.list_tools())])

    @property
    def mcp_client(self) -> Client[Any]:
        """A client of the tools, in this process."""
        return session_client(self._registry.server)

    @property
    def _current_mode(self) -> ServerMode:
        return ServerMode.of(self._mode or ServerMode.SIMULATION)

    def tool(self, mode: str | None = None) -> Callable[[F], F]:
        """A decorator: the function is a tool, in one mode or, without one, in both.

        The same name may have a tool in each mode: the real service in one, its double in the other.
        """
        chosen = ServerMode.of(mode) if mode is not None else None

        def register(function: F) -> F:
            self._registry.add(function, chosen)
            return function

        return register

    # Steps.

    @abstractmethod
    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """A step that is not about tools."""

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """`step_async`, for whoever cannot await."""
        if isinstance(action, ListToolsAction | CallToolAction):
            return _now(self._tool_step(action, timeout_s))
        return self._step_impl(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Take one action."""
        if isinstance(action, ListToolsAction | CallToolAction):
            return await self._tool_step(action, timeout_s)
        observation = self._step_impl(action, timeout_s=timeout_s, **kwargs)
        return await observation if isinstance(observation, Awaitable) else observation

    async def _tool_step(
        self, action: ListToolsAction | CallToolAction, timeout_s: float | None
    ) -> Observation:
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=await self.describe_tools())
        observation = await self._call(action, timeout_s)
        if self.rubric is not None:
            observation.reward = await self._apply_rubric_async(action, observation)
        transformed: Observation = self._apply_transform(observation)
        return transformed

    async def _call(self, action: CallToolAction, timeout_s: float | None) -> CallToolObservation:
        limit = timeout_s or MCP_TOOL_CALL_TIMEOUT
        name = action.tool_name
        try:
            result = await self._registry.call(name, action.arguments, self._current_mode, limit)
        except TimeoutError:
            error = failure(TimeoutError(f"Tool '{name}' did not answer within {limit:g} s"))
        except Exception as raised:  # a tool is its author's code
            error = failure(raised)
        else:
            return CallToolObservation(tool_name=name, result=result)
        return CallToolObservation(tool_name=name, error=error)

    async def describe_tools(self) -> list[Tool]:
        """The tools there are now, without a step."""
        return await self._registry.describe(self._current_mode)

    @asynccontextmanager
    async def mcp_session(self) -> AsyncIterator[Client[Any]]:
        """A client of the tools, connected for the length of the block."""
        async with self.mcp_client as client:
            yield client

    # Code mode: the tools as functions, for an agent that writes Python.

    def get_callables(self) -> dict[str, Callable[..., Any]]:
        """The tools as plain functions, by name."""
        functions: dict[str, Callable[..., Any]] = _now(self._registry.functions(self._current_mode))
        return functions

    def execute_code(self, code: str) -> Observation:
        """Run Python that calls the tools by name; what it leaves in `result` is the answer.

        The code runs in this very process, with all that this process may do: it is for code that you
        trust. For an agent's own code use a sandbox.
        """
        namespace: dict[str, Any] = dict(self.get_callables())
        try:
            exec(compile(code, "<code mode>", "exec"), namespace)  # noqa: S102
        except SyntaxError as error:
            return Observation(metadata={"error": f"Syntax error: {error}"})
        except Exception as error:  # the code is the agent's
            return Observation(metadata={"error": f"{type(error).__name__}: {error}"})
        return Observation(metadata={"result": namespace.get("result")})

    def close(self) -> Awaitable[None] | None:
        """Let go of the server. Whoever runs the environment on a loop awaits what this gives."""
        self.mcp_server = None
        return _Closing(self._registry)


class _Closing:
    """The end of the tools' sessions, for those who await it; nothing is lost if nobody does."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def __await__(self) -> Generator[Any, Any, None]:
        return self._registry.close().__await__()


def get_server_tools(mcp_server: FastMCP) -> dict[str, Any]:
    """The tools of a FastMCP server, by name."""
    return {tool.name: tool for tool in _now(mcp_server.list_tools())}


def _now(coroutine: Any) -> Any:
    """What a coroutine comes to, on a loop of its own, whether or not one runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
