"""MCP over standard input and output, with FastMCP's client at the other end."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from tests.support import PATIENCE_S


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


TALKATIVE = """
import os

from fastmcp import FastMCP

from envtorch import Observation, State
from envtorch.mcp import MCPEnvironment

print("printed by the module")


class Talkative(MCPEnvironment):
    def __init__(self) -> None:
        tools = FastMCP("talkative")

        @tools.tool
        def add(amount: int) -> int:
            print("printed by the tool")
            os.system("echo written by a program")
            return amount + 1

        super().__init__(tools)

    def reset(self, seed=None, episode_id=None):
        return Observation()

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return State()
"""


def test_what_an_environment_prints_goes_to_the_error_output(tmp_path: Path) -> None:
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    requests = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"amount": 2}}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **request}) + "\n" for request in requests)
    served = subprocess.run(
        [sys.executable, "-m", "envtorch.cli", "mcp", "./talkative.py"],
        input=lines,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    answers = [json.loads(line) for line in served.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2], served.stderr
    assert answers[1]["result"]["structuredContent"] == {"result": 3}
    for printed in ("printed by the module", "printed by the tool", "written by a program"):
        assert printed in served.stderr
