"""Use an environment: `EnvClient` blocks, `MyEnv.aio(...)` awaits, `HTTPEnvClient` needs only HTTP;
`MyEnv.vector(url, n)` steps many sessions at once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from envtorch.client.sync import EnvClient, GenericEnvClient

if TYPE_CHECKING:
    from envtorch.client.aio import AsyncEnvClient
    from envtorch.client.http import HTTPEnvClient
    from envtorch.client.tools import AsyncMCPToolClient, MCPToolClient
    from envtorch.client.vector import VectorEnv

__all__ = [
    "AsyncEnvClient",
    "AsyncMCPToolClient",
    "EnvClient",
    "GenericEnvClient",
    "HTTPEnvClient",
    "MCPToolClient",
    "VectorEnv",
]

_LATER = {
    "AsyncEnvClient": "aio",
    "AsyncMCPToolClient": "tools",
    "HTTPEnvClient": "http",
    "MCPToolClient": "tools",
    "VectorEnv": "vector",
}
"""What not everybody needs, and what takes long to import: an event loop, an HTTP library, tools."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"envtorch.client.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
