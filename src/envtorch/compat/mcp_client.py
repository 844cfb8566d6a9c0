"""OpenEnv's `MCPToolClient`: an environment's tools, and its episodes, over one session."""

import logging
from collections.abc import Mapping
from itertools import count
from typing import Any

from pydantic import ConfigDict

from envtorch.compat.env_client import EnvClient
from envtorch.compat.pending import settle
from envtorch.protocol.tool_requests import read_tools, value_of
from envtorch.settings import ServerMode
from envtorch.tools import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from envtorch.types import Observation, State, StepResult

__all__ = ["GenericMCPObservation", "MCPClientBase", "MCPToolClient"]

logger = logging.getLogger(__name__)


class GenericMCPObservation(Observation):
    """What an environment showed that is not about tools."""

    model_config = ConfigDict(extra="allow")


class MCPClientBase(EnvClient[Any, Any, State]):
    """Lists an environment's tools.

    A tool call is a step of the episode. Where a server's production mode allows no steps, tools are
    called as JSON-RPC through the same session.
    """

    _tools_cache: list[Tool] | None = None
    use_production_mode: bool = False

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        provider: Any = None,
        mode: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`mode` can only be "production", never "simulation": tools are what production offers."""
        if mode is not None and ServerMode.of(mode) is not ServerMode.PRODUCTION:
            raise ValueError(f"{type(self).__name__} works in production mode only, and not in {mode!r}")
        super().__init__(
            base_url,
            connect_timeout_s,
            message_timeout_s,
            provider=provider,
            mode=str(ServerMode.PRODUCTION),
            headers=headers,
            **options,
        )
        self._ids = count(1)

    async def list_tools(self, use_cache: bool = True) -> list[Tool]:
        """The environment's tools, asked for once.

        An empty list where OpenEnv's client gives one: in production mode when the server cannot be reached
        or refuses, and in simulation when the answer is no list of tools. Failures are logged, and not kept.
        """
        if use_cache and self._tools_cache is not None:
            return self._tools_cache
        if self.use_production_mode:
            try:
                tools = read_tools((await self._rpc("tools/list", {})).get("tools", []))
            except (RuntimeError, OSError) as failed:
                logger.warning("the server lists no tools: %s", failed)
                return []
        else:
            try:
                observation = (await settle(self.step(ListToolsAction()))).observation
            except RuntimeError as refused:
                self._turn_to_production(refused)
                return await self.list_tools(use_cache)
            tools = observation.tools if isinstance(observation, ListToolsObservation) else []
        self._tools_cache = tools
        return tools

    def _turn_to_production(self, refused: RuntimeError) -> None:
        """Go on with JSON-RPC where steps are not for us; anything else is the caller's to see."""
        if "NOT_ALLOWED" not in str(refused):
            raise refused
        self.use_production_mode = True

    async def _rpc(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        answer = (await self._send_and_receive({"type": "mcp", "data": request})).get("data", {})
        if answer.get("error") is not None:
            raise RuntimeError(str(answer["error"].get("message")))
        result: dict[str, Any] = answer.get("result") or {}
        return result

    def _step_payload(self, action: Any) -> dict[str, Any]:
        if isinstance(action, ListToolsAction):
            return {"type": "list_tools"}
        if isinstance(action, CallToolAction):
            return {"type": "call_tool", "tool_name": action.tool_name, "arguments": action.arguments}
        if isinstance(action, dict):
            return action
        payload: dict[str, Any] = action.model_dump()
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        told = payload.get("observation", {})
        outcome = {"done": payload.get("done", False), "reward": payload.get("reward")}
        observation: Observation
        if "tools" in told:
            observation = ListToolsObservation(tools=read_tools(told["tools"]), **outcome)
        elif "tool_name" in told:
            fields = {
                name: told[name] for name in ("tool_name", "result", "error", "metadata") if name in told
            }
            observation = CallToolObservation(**fields, **outcome)
        else:
            observation = GenericMCPObservation(**told, **outcome)
        return StepResult(observation=observation, reward=outcome["reward"], done=outcome["done"])

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


class MCPToolClient(MCPClientBase):
    """Calls an environment's tools by name."""

    async def call_tool(self, name: str, **arguments: Any) -> Any:
        """What a tool answered. Raises `RuntimeError` when it failed."""
        if self.use_production_mode:
            return await self._call_as_rpc(name, arguments)
        action = CallToolAction(tool_name=name, arguments=arguments)
        try:
            observation = (await settle(self.step(action))).observation
        except RuntimeError as refused:
            self._turn_to_production(refused)
            return await self._call_as_rpc(name, arguments)
        if getattr(observation, "error", None) is not None:
            raise RuntimeError(f"Tool '{name}' failed: {observation.error.message}")
        return value_of(getattr(observation, "result", observation))

    async def _call_as_rpc(self, name: str, arguments: dict[str, Any]) -> Any:
        try:
            return value_of(await self._rpc("tools/call", {"name": name, "arguments": arguments}))
        except RuntimeError as failed:
            raise RuntimeError(f"Tool '{name}' failed: {failed}") from None

    async def get_tool(self, name: str) -> Tool | None:
        """A tool by its name, if there is one."""
        return next((tool for tool in await self.list_tools() if tool.name == name), None)

    async def has_tool(self, name: str) -> bool:
        """Whether there is a tool of that name."""
        return await self.get_tool(name) is not None
