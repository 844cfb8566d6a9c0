"""MCP over standard input and output, with FastMCP's client at the other end."""

import asyncio
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


def test_a_desktop_agent_plays_an_episode() -> None:
    async def use() -> tuple[str, list[str], Any]:
        command = ["-m", "envtorch.cli", "mcp", "echo_env"]
        async with Client(StdioTransport(sys.executable, command, keep_alive=False)) as client:
            names = [tool.name for tool in await client.list_tools()]
            await client.call_tool("step", {"message": "one"})
            answer = await client.call_tool("step", {"message": "two!"})
            told = client.initialize_result.instructions if client.initialize_result else ""
            return told or "", names, answer.structured_content

    instructions, names, answer = asyncio.run(use())
    assert "Echo environment ready!" in instructions
    assert names == ["step"]
    assert answer["observation"]["metadata"]["step"] == 2
