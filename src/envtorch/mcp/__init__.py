"""Environments made of tools: `MCPEnvironment`, on a FastMCP server. Needs `envtorch[mcp]`."""

from envtorch.errors import MissingExtra

try:
    import fastmcp as _fastmcp  # noqa: F401
except ImportError as missing:
    raise MissingExtra("tools need the fastmcp package: pip install 'envtorch[mcp]'") from missing

from envtorch.mcp.environment import MCPEnvironment

__all__ = ["MCPEnvironment"]
