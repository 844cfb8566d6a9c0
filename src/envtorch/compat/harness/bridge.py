"""An environment's tools, served over MCP on this machine, for a harness that runs beside it."""

import socket
import threading
from collections.abc import Collection, Mapping
from typing import Any

import uvicorn
from fastmcp import FastMCP

from envtorch.compat.harness.turns import HarnessError
from envtorch.tools import RESERVED_TOOL_NAMES, Tool

__all__ = ["HarnessMCPBridge", "build_bridge_server", "resolve_tool_conflicts"]


def resolve_tool_conflicts(
    env_tools: list[Tool], harness_builtin_tools: Collection[str], prefix: str = "env_"
) -> list[Tool]:
    """The tools under names that the harness does not have yet. Raises `ValueError` if none is free."""
    names = [tool.name for tool in env_tools]
    if reserved := sorted(RESERVED_TOOL_NAMES.intersection(names)):
        raise ValueError(f"Tool names are reserved for orchestration controls: {', '.join(reserved)}")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Duplicate environment tool name: {name}")
    resolved = []
    for tool in env_tools:
        name = tool.name
        if name in harness_builtin_tools:
            name = f"{prefix}{name}"
            if name in harness_builtin_tools or name in names:
                raise ValueError(
                    f"Cannot resolve tool name conflict: {tool.name!r} and {name!r} are both taken"
                )
        resolved.append(tool.model_copy(update={"name": name}))
    return resolved


async def build_bridge_server(mcp_server: FastMCP, renames: Mapping[str, str] | None = None) -> FastMCP:
    """A server with the same tools, some under other names: `renames` gives the old name for each new one."""
    tools = {tool.name: tool for tool in await mcp_server.list_tools()}
    return serving(tools, renames or {})


def serving(tools: Mapping[str, Any], renames: Mapping[str, str]) -> FastMCP:
    """A server of these tools. Raises `HarnessError` for a new name of a tool that is not there."""
    new_names = {old: new for new, old in renames.items()}
    if unknown := sorted(set(new_names) - set(tools)):
        raise HarnessError(f"there is no tool {', '.join(unknown)} to be renamed")
    bridge = FastMCP("environment-tools")
    for name, tool in tools.items():
        bridge.add_tool(tool.model_copy(update={"name": new_names.get(name, name)}))
    return bridge


class HarnessMCPBridge:
    """Serves tools on a port of this machine, on a thread of its own."""

    def __init__(self, mcp_server: FastMCP, host: str = "127.0.0.1") -> None:
        self._tools = mcp_server
        self._host = host
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._url: str | None = None

    @property
    def url(self) -> str | None:
        """Where the tools are; None while they are not served."""
        return self._url

    def start(self, timeout_s: float = 10.0) -> str:
        """Serve the tools; where. A second start changes nothing."""
        if self._url is not None:
            return self._url
        app = self._tools.http_app(path="/mcp")
        server = _Announced(uvicorn.Config(app, log_level="warning", lifespan="on"))
        listener = socket.create_server((self._host, 0))
        self._server = server
        address = f"http://{self._host}:{listener.getsockname()[1]}/mcp"
        self._thread = threading.Thread(
            target=server.run_on, args=(listener,), name="harness-bridge", daemon=True
        )
        self._thread.start()
        if not server.settled.wait(timeout_s) or not server.started:
            self.stop()
            raise HarnessError(f"the bridge to the tools did not start within {timeout_s:g} s")
        self._url = address
        return address

    def stop(self, timeout_s: float = 5.0) -> None:
        """Serve them no more; if they are not served, do nothing."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        server.should_exit = True
        thread.join(timeout_s)
        if thread.is_alive():
            server.force_exit = True
            thread.join(timeout_s)
        if thread.is_alive():
            raise HarnessError(f"the bridge to the tools did not stop within {2 * timeout_s:g} s")
        self._server = self._thread = self._url = None


class _Announced(uvicorn.Server):
    """A server that says when it has come up, or never will."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.settled.set()

    def run_on(self, listener: socket.socket) -> None:
        try:
            self.run(sockets=[listener])
        finally:
            self.settled.set()
            listener.close()
