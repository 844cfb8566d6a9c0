"""Environments made of tools: `MCPEnvironment`, on a FastMCP server. Needs the extra `mcp`."""

from envtorch.extras import missing_extra

try:
    import fastmcp as _fastmcp  # noqa: F401
except ImportError as missing:
    raise missing_extra("mcp", "tools need the fastmcp package") from missing

from envtorch.mcp.environment import MCPEnvironment

__all__ = ["MCPEnvironment"]
