"""Use an environment: `EnvClient` blocks, `MyEnv.aio(...)` awaits, `HTTPEnvClient` needs only HTTP;
`MyEnv.vector(url, n)` steps many sessions at once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from envtorch.client.aio import AsyncEnvClient
from envtorch.client.sync import EnvClient, GenericEnvClient
from envtorch.client.vector import VectorEnv

if TYPE_CHECKING:
    from envtorch.client.http import HTTPEnvClient
    from envtorch.client.tools import AsyncMCPToolClient, MCPToolClient

__all__ = [
    "AsyncEnvClient",
    "AsyncMCPToolClient",
    "EnvClient",
    "GenericEnvClient",
    "HTTPEnvClient",
    "MCPToolClient",
    "VectorEnv",
]

_LATER = {"HTTPEnvClient": "http", "AsyncMCPToolClient": "tools", "MCPToolClient": "tools"}
"""What few need, and what costs more to import: an HTTP library, the classes of tools."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"envtorch.client.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
