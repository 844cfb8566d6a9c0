"""Use an environment: `EnvClient` blocks, `MyEnv.aio(...)` awaits, `HTTPEnvClient` needs only HTTP;
`MyEnv.vector(url, n)` steps many sessions at once."""

from typing import TYPE_CHECKING, Any

from envtorch.client.aio import AsyncEnvClient
from envtorch.client.sync import EnvClient, GenericEnvClient
from envtorch.client.vector import VectorEnv

if TYPE_CHECKING:
    from envtorch.client.http import HTTPEnvClient

__all__ = ["AsyncEnvClient", "EnvClient", "GenericEnvClient", "HTTPEnvClient", "VectorEnv"]


def __getattr__(name: str) -> Any:
    if name == "HTTPEnvClient":  # the only one that needs an HTTP library
        from envtorch.client.http import HTTPEnvClient

        return HTTPEnvClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
