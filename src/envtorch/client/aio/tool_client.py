"""The async client of environments that are made of tools."""

from collections.abc import Mapping
from typing import Any, Unpack

from envtorch.client.aio.client import AsyncEnvClient, AsyncFactory
from envtorch.client.client_options import GivenOptions, Owner
from envtorch.env import EnvironmentSource
from envtorch.protocol.tool_requests import ask_call
from envtorch.types import Action, Observation, State

__all__ = ["AsyncMCPToolClient", "AsyncToolFactory"]


class AsyncMCPToolClient(AsyncEnvClient[Action, Observation, State]):
    """`MCPToolClient`, awaited. Made by `MCPToolClient.aio(...)`."""

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        """What a tool answers; `MCPToolClient.call_tool` says how it fails."""
        return await self._run(lambda format: ask_call(name, arguments, format), timeout_s)


class AsyncToolFactory(AsyncFactory[Action, Observation, State]):
    """`MCPToolClient.aio`."""

    def __call__(
        self, base_url: str, *, provider: Owner | None = None, **options: Unpack[GivenOptions]
    ) -> AsyncMCPToolClient:
        return _with_tools(super().__call__(base_url, provider=provider, **options))

    def local(self, environment: EnvironmentSource | None = None) -> AsyncMCPToolClient:
        return _with_tools(super().local(environment))


def _with_tools(client: AsyncEnvClient[Action, Observation, State]) -> AsyncMCPToolClient:
    made = AsyncMCPToolClient(client._options, client._translation, provider=client._provider)
    made._make_host = client._make_host
    return made
