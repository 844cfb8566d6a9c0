"""EnvTorch: isolated execution environments for agentic RL.

The public names. Each is imported from its home when it is first used, so `import envtorch` costs
next to nothing and a client never pays for a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envtorch.batch_actions import Actions
    from envtorch.client import (
        AsyncEnvClient,
        AsyncVectorEnv,
        EnvClient,
        GenericEnvClient,
        HTTPEnvClient,
        MCPToolClient,
        VectorEnv,
    )
    from envtorch.env import Environment, EnvSpec, Rubric, TaskProvider, ToolProvider, Transform
    from envtorch.errors import EnvTorchError
    from envtorch.pool import AsyncEnvPool, EnvPool
    from envtorch.sandbox import Sandbox
    from envtorch.server import HTTPEnvServer, ServerOptions, create_app, create_fastapi_app, serve
    from envtorch.types import (
        Action,
        ConcurrencyConfig,
        EnvironmentMetadata,
        Observation,
        ServerCapacityStatus,
        SessionInfo,
        State,
        StepResult,
        Tool,
    )

__version__ = "0.1.0"

_HOMES = {
    "envtorch.client": (
        "AsyncEnvClient",
        "AsyncVectorEnv",
        "EnvClient",
        "GenericEnvClient",
        "HTTPEnvClient",
        "MCPToolClient",
        "VectorEnv",
    ),
    "envtorch.env": ("EnvSpec", "Environment", "Rubric", "TaskProvider", "ToolProvider", "Transform"),
    "envtorch.errors": ("EnvTorchError",),
    "envtorch.pool": ("AsyncEnvPool", "EnvPool"),
    "envtorch.sandbox": ("Sandbox",),
    "envtorch.server": ("HTTPEnvServer", "ServerOptions", "create_app", "create_fastapi_app", "serve"),
    "envtorch.batch_actions": ("Actions",),
    "envtorch.types": (
        "Action",
        "ConcurrencyConfig",
        "EnvironmentMetadata",
        "Observation",
        "ServerCapacityStatus",
        "SessionInfo",
        "State",
        "StepResult",
        "Tool",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Action",
    "Actions",
    "AsyncEnvClient",
    "AsyncEnvPool",
    "AsyncVectorEnv",
    "ConcurrencyConfig",
    "EnvClient",
    "EnvPool",
    "EnvSpec",
    "EnvTorchError",
    "Environment",
    "EnvironmentMetadata",
    "GenericEnvClient",
    "HTTPEnvClient",
    "HTTPEnvServer",
    "MCPToolClient",
    "Observation",
    "Rubric",
    "Sandbox",
    "ServerCapacityStatus",
    "ServerOptions",
    "SessionInfo",
    "State",
    "StepResult",
    "TaskProvider",
    "Tool",
    "ToolProvider",
    "Transform",
    "VectorEnv",
    "__version__",
    "create_app",
    "create_fastapi_app",
    "serve",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'envtorch' has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
