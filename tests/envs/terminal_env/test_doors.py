"""The terminal environment behind a server: both clients, HTTP, MCP, forks, and the environment's own
check."""

import httpx
import pytest

from envtorch.client import MCPToolClient
from envtorch.envs.terminal_env import BashAction, TerminalEnv
from envtorch.errors import Unsupported
from envtorch.testing import check_env
from tests.envs.terminal_env.conftest import SmallTerminal
from tests.patient import get, post
from tests.sandbox.roots import require_host_root
from tests.support import Running


def test_an_episode_over_a_websocket_with_forks(terminal_server: Running) -> None:
    with TerminalEnv(terminal_server.url) as env:
        env.reset()
        env.step(BashAction("cd /tmp; echo base > f; v=1"))
        copies = env.fork(2)
        for number, copy in enumerate(copies):
            with copy:
                copy.step(BashAction(f"echo {number} >> f"))
                assert copy.step(BashAction("cat f; echo $v")).observation.output == f"base\n{number}\n1\n"
        assert env.step(BashAction("cat f")).observation.output == "base\n"
        env.step(BashAction("sleep 100 &"))
        with pytest.raises(Unsupported, match="sleep"):
            env.fork(1)


def test_the_tools_are_there_for_a_client_of_tools(terminal_server: Running) -> None:
    with MCPToolClient(terminal_server.url) as env:
        env.reset()
        assert "bash" in [tool.name for tool in env.list_tools()]
        assert env.call_tool("bash", {"command": "echo $((6*7))"}) == "42"


def test_the_tools_are_there_over_mcp(terminal_server: Running) -> None:
    def ask(method: str, **params: object) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return post(f"{terminal_server.url}/mcp", json=body, headers={"Accept": "application/json"})

    listed = ask("tools/list").json()
    assert "bash" in [tool["name"] for tool in listed["result"]["tools"]]
    called = ask("tools/call", name="bash", arguments={"command": "echo $((6*7))"}).json()
    assert "42" in str(called["result"])
    assert get(f"{terminal_server.url}/metadata").json()["name"] == "terminal_env"


def test_the_environment_keeps_its_contract() -> None:
    require_host_root()
    actions = [
        {"type": "call_tool", "tool_name": "bash", "arguments": {"command": "cd /tmp; echo one > f; cat f"}},
        {"type": "call_tool", "tool_name": "read_file", "arguments": {"path": "f"}},
        {"type": "call_tool", "tool_name": "submit", "arguments": {}},
    ]
    report = check_env(SmallTerminal, actions=actions)
    assert report.ok, str(report)
