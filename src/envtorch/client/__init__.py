"""Use an environment: `EnvClient` blocks, `MyEnv.aio(...)` awaits, `HTTPEnvClient` needs only HTTP;
`MyEnv.vector(url, n)` steps many sessions at once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from envtorch.client.blocking.client import EnvClient, GenericEnvClient

if TYPE_CHECKING:
    from envtorch.client.aio.client import AsyncEnvClient
    from envtorch.client.aio.tool_client import AsyncMCPToolClient
    from envtorch.client.aio.vector import AsyncVectorEnv
    from envtorch.client.blocking.tool_client import MCPToolClient
    from envtorch.client.blocking.vector import VectorEnv
    from envtorch.client.http import HTTPEnvClient

__all__ = [
    "AsyncEnvClient",
    "AsyncMCPToolClient",
    "AsyncVectorEnv",
    "EnvClient",
    "GenericEnvClient",
    "HTTPEnvClient",
    "MCPToolClient",
    "VectorEnv",
]

_LATER = {
    "AsyncEnvClient": "aio.client",
    "AsyncMCPToolClient": "aio.tool_client",
    "AsyncVectorEnv": "aio.vector",
    "HTTPEnvClient": "http",
    "MCPToolClient": "blocking.tool_client",
    "VectorEnv": "blocking.vector",
}
"""Imported on first use, as not every client needs an event loop, an HTTP library or tools."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"envtorch.client.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
