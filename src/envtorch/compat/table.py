"""Where OpenEnv's names live in EnvTorch: the one table.

Each old module is served by the sources on its right, looked through in order: a module of ours (all of
its names), or `old_name=module:new_name` for one name that is called differently here. `openenv_core` is
the same tree as `openenv.core`, and the early `core` the same with the server's names of its time.
"""

from typing import Final

__all__ = ["DELETED", "MIRRORS", "TABLE", "take_what_any_release_took"]

_TYPES = ("envtorch.types", "envtorch.compat.types", "ServerMode=envtorch.settings:ServerMode")
_INTERFACES = ("envtorch.env", "envtorch.compat.interfaces", *_TYPES)
_TOOLS = ("envtorch.tools", "envtorch.compat.jsonrpc", *_TYPES)
_TRANSFORMS = ("envtorch.transforms",)
_SERVER = ("envtorch.compat.http_server", "envtorch.compat.serialization", "envtorch.compat.exceptions")
_WEB = ("envtorch.compat.web_interface",)
_MCP = (  # by name: they need an extra, and nothing else here should
    "MCPEnvironment=envtorch.mcp.environment:MCPEnvironment",
    "get_server_tools=envtorch.mcp.environment:get_server_tools",
    "MCP_TOOL_CALL_TIMEOUT=envtorch.mcp.environment:MCP_TOOL_CALL_TIMEOUT",
)
_CLIENTS = (
    "envtorch.compat.env_client",
    "envtorch.compat.sync_client",
    "envtorch.compat.generic_client",
    "envtorch.compat.mcp_client",
)
_LLM = (
    "AsyncOpenAI=envtorch.llm.openai:AsyncOpenAI",
    "_clean_mcp_schema=envtorch.llm.schemas:clean_schema",
    "_mcp_tools_to_openai=envtorch.llm.schemas:openai_tools",
    "_mcp_tools_to_anthropic=envtorch.llm.schemas:anthropic_tools",
    "_openai_msgs_to_anthropic=envtorch.llm.schemas:anthropic_messages",
    "envtorch.llm",
)
_RESULT = ("envtorch.types",)
_PROVIDERS = ("envtorch.providers",)
_ENV_SERVER = (*_INTERFACES, *_TOOLS, *_TRANSFORMS, *_SERVER, "envtorch.compat.route_config", *_WEB, *_MCP)

_TURNS = ("envtorch.compat.harness.turns", "envtorch.compat.harness.program")
_HARNESS_ENVIRONMENT = tuple(  # by name: they need an extra
    f"{name}=envtorch.compat.harness.{module}:{name}"
    for module, names in {
        "bridge": ("HarnessMCPBridge", "build_bridge_server", "resolve_tool_conflicts"),
        "environment": ("HarnessAction", "HarnessEnvironment"),
    }.items()
    for name in names
)

TABLE: Final[dict[str, tuple[str, ...]]] = {
    "openenv": ("envtorch.compat.package", "envtorch.compat.auto", *_CLIENTS),
    "openenv.auto": ("envtorch.compat.auto",),
    "openenv.auto.auto_env": ("envtorch.compat.auto.env",),
    "openenv.auto.auto_action": ("envtorch.compat.auto.action",),
    "openenv.auto._discovery": ("envtorch.compat.auto.discovery",),
    "openenv.core": (*_CLIENTS, *_LLM, *_ENV_SERVER),
    "openenv.core.client_types": _RESULT,
    "openenv.core.env_client": ("envtorch.compat.env_client", *_RESULT),
    "openenv.core.sync_client": ("envtorch.compat.sync_client", *_RESULT),
    "openenv.core.generic_client": ("envtorch.compat.generic_client", *_RESULT),
    "openenv.core.mcp_client": ("envtorch.compat.mcp_client", *_TOOLS),
    "openenv.core.llm_client": _LLM,
    "openenv.core.utils": ("envtorch.compat.utils",),
    "openenv.core.env_server": _ENV_SERVER,
    "openenv.core.env_server.types": _TYPES,
    "openenv.core.env_server.interfaces": _INTERFACES,
    "openenv.core.env_server.http_server": (*_SERVER, *_TOOLS, *_INTERFACES, *_MCP),
    "openenv.core.env_server.mcp_types": _TOOLS,
    "openenv.core.env_server.mcp_environment": (*_MCP, *_TOOLS, *_INTERFACES),
    "openenv.core.env_server.serialization": ("envtorch.compat.serialization", *_TOOLS),
    "openenv.core.env_server.base_transforms": (*_TRANSFORMS, *_INTERFACES),
    "openenv.core.env_server.exceptions": ("envtorch.compat.exceptions",),
    "openenv.core.env_server.route_config": ("envtorch.compat.route_config",),
    "openenv.core.env_server.web_interface": (*_WEB, *_INTERFACES),
    "openenv.core.env_server.gradio_ui": _WEB,
    "openenv.core.env_server.gradio_theme": _WEB,
    "openenv.core.rubrics": ("envtorch.rubrics",),
    "openenv.core.rubrics.base": ("envtorch.rubrics.base",),
    "openenv.core.rubrics.containers": ("envtorch.rubrics.containers", "envtorch.rubrics.base"),
    "openenv.core.rubrics.trajectory": ("envtorch.rubrics.trajectory", "envtorch.rubrics.base"),
    "openenv.core.rubrics.llm_judge": ("envtorch.rubrics.llm_judge", "envtorch.rubrics.base"),
    "openenv.core.evals": ("envtorch.compat.evals",),
    "openenv.core.evals.base": ("envtorch.compat.evals",),
    "openenv.core.evals.types": ("envtorch.compat.evals",),
    "openenv.core.evals.inspect_harness": ("envtorch.compat.evals",),
    "openenv.core.harness": ("envtorch.compat.harness", *_HARNESS_ENVIRONMENT),
    "openenv.core.harness.adapter": _TURNS,
    "openenv.core.harness.config": _TURNS,
    "openenv.core.harness.events": _TURNS,
    "openenv.core.harness.process": _TURNS,
    "openenv.core.harness.bridge": _HARNESS_ENVIRONMENT,
    "openenv.core.harness.environment": _HARNESS_ENVIRONMENT,
    "openenv.core.harness.tools": _HARNESS_ENVIRONMENT,
    "openenv.core.harness.rollout": ("envtorch.compat.harness", "envtorch.compat.harness.rollout"),
    "openenv.core.harness.training": ("envtorch.compat.harness.training",),
    "openenv.core.harness.capture": (),
    "openenv.core.harness.capture.upstream": (
        "training_sampling=envtorch.compat.harness.training:training_sampling",
    ),
    "openenv.core.harness.collect": (
        "envtorch.compat.harness.collect",
        "envtorch.compat.harness.publish",
        "envtorch.compat.harness",
    ),
    "openenv.core.tools": ("envtorch.compat.tools",),
    "openenv.core.tools.git_server_client": ("envtorch.compat.tools.git",),
    "openenv.core.tools.local_python_executor": ("envtorch.compat.tools.python",),
    "openenv.core.containers": _PROVIDERS,
    "openenv.core.containers.runtime": _PROVIDERS,
    "openenv.core.containers.runtime.providers": _PROVIDERS,
    "openenv.core.containers.runtime.uv_provider": _PROVIDERS,
    "openenv.core.containers.runtime.daytona_provider": (  # by name: it needs an extra
        "DaytonaProvider=envtorch.compat.daytona:DaytonaProvider",
        "time=envtorch.compat.daytona:time",
    ),
}

DELETED: Final[dict[str, tuple[str, ...]]] = {
    # What OpenEnv once had, or what people wrote as if it had; environments still import these.
    "openenv.client": (*_CLIENTS, *_RESULT),
    "openenv.core.client": (*_CLIENTS, *_RESULT),
    "openenv.core.types": (*_RESULT, *_TYPES),
    "openenv.core.models": (
        "BaseAction=envtorch.types:Action",
        "BaseObservation=envtorch.types:Observation",
        "BaseState=envtorch.types:State",
        *_TYPES,
    ),
    "openenv.core.http_env_client": ("envtorch.client.http", *_RESULT),
    "openenv.core.ws_env_client": (
        "WebSocketEnvClient=envtorch.compat.env_client:EnvClient",
        "envtorch.compat.env_client",
        *_RESULT,
    ),
}

TABLE.update(DELETED)
TABLE["openenv.core"] += (*_RESULT, "envtorch.client.http")

EARLY: Final = "envtorch.compat.early"
"""The server's names as the first releases had them."""

_SERVER_MODULES = ("openenv.core", "openenv.core.env_server", "openenv.core.env_server.http_server")

TABLE.update(  # the early `core` is the tree of `openenv.core`, with the server's names of its time
    {
        f"core{name.removeprefix('openenv.core')}": (EARLY, *sources) if name in _SERVER_MODULES else sources
        for name, sources in list(TABLE.items())
        if name == "openenv.core" or name.startswith("openenv.core.")
    }
)

MIRRORS: Final[dict[str, str]] = {"openenv_core": "openenv.core"}
"""Other names of the same tree."""


def take_what_any_release_took() -> None:
    """Let OpenEnv's server names take what any of its releases took, from now on in this process."""
    for name in _SERVER_MODULES:
        if TABLE[name][0] != EARLY:
            TABLE[name] = (EARLY, *TABLE[name])
