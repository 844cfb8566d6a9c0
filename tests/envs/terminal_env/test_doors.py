"""The terminal environment behind a server: both clients, HTTP, MCP, forks, and the environment's own
check."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from envtorch.client import EnvClient, MCPToolClient
from envtorch.envs.terminal_env import BashAction, SubmitAction, TerminalEnv
from envtorch.errors import CapacityReached, InvalidAction, ResetRequired, Unsupported
from envtorch.rollout import Completion, Prompt, Rollouts
from envtorch.testing import check_env
from envtorch.train.trl_environments import TRLEnvironments
from tests.envs.terminal_env.conftest import SmallTerminal
from tests.patient import get, post
from tests.sandbox.roots import SLEEPER, require_host_root
from tests.support import PATIENCE_S, Running


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
        env.step(BashAction(SLEEPER))
        with pytest.raises(Unsupported, match="sleep") as refused:
            env.fork(1)
        assert "TerminalEnvironment(drop_processes=True)" in refused.value.message
        assert "Workspace" not in refused.value.message  # what a client cannot call


def test_a_fork_into_more_copies_than_the_server_holds_is_refused_with_its_limit(
    terminal_server: Running,
) -> None:
    with TerminalEnv(terminal_server.url) as env:
        env.reset()
        with pytest.raises(CapacityReached, match=r"1,000 copies .* of the server's 16 are taken") as refused:
            env.fork(1000)
        assert refused.value.details["max_sessions"] == 16
        with pytest.raises(CapacityReached, match=r"16 copies .* Ask for fewer"):
            env.fork(16)
        assert env.step(BashAction("echo on")).observation.output == "on\n"


def test_a_step_before_reset_is_refused_at_every_door_but_mcp(terminal_server: Running) -> None:
    with TerminalEnv(terminal_server.url) as env:
        with pytest.raises(ResetRequired):
            env.step(BashAction("true"))
        with pytest.raises(ResetRequired):
            env.step(SubmitAction())
        assert "bash" in [tool.name for tool in env.list_tools()]
        env.reset()
        assert env.step(BashAction("echo on")).observation.output == "on\n"
    action = {"type": "call_tool", "tool_name": "bash", "arguments": {"command": "true"}}
    assert (
        post(f"{terminal_server.url}/step", json={"action": action}).status_code == ResetRequired.http_status
    )
    with TerminalEnv.local(SmallTerminal) as local, pytest.raises(ResetRequired):
        local.step(BashAction("true"))
    with MCPToolClient(terminal_server.url) as tools:  # as over MCP, where nothing else begins an episode
        assert tools.call_tool("bash", {"command": "echo on"}) == "on"


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


def test_a_picture_is_image_content_over_mcp(terminal_server: Running) -> None:
    with httpx.Client(base_url=terminal_server.url, timeout=PATIENCE_S) as http:
        begun = http.post("/reset", json={})
        headers = {"EnvTorch-Session": begun.headers["EnvTorch-Session"]}
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }

        def ask(method: str, more: dict[str, str], **params: object) -> httpx.Response:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            accept = {"Accept": "application/json, text/event-stream"}
            return http.post("/mcp", json=body, headers={**accept, **more})

        joined = ask("initialize", headers, **about)
        session = {"Mcp-Session-Id": joined.headers["Mcp-Session-Id"]}
        picture = {"command": "echo R0lGODlhAQABAAAAACw= | base64 -d > /tmp/dot.gif"}
        ask("tools/call", session, name="bash", arguments=picture)
        seen = ask("tools/call", session, name="view_image", arguments={"path": "/tmp/dot.gif"}).json()
    text, image = seen["result"]["content"]
    assert "/tmp/dot.gif: image/gif, 14 bytes" in text["text"]
    assert image == {"type": "image", "data": "R0lGODlhAQABAAAAACw=", "mimeType": "image/gif"}


def test_the_environment_keeps_its_contract() -> None:
    require_host_root()
    actions = [
        {"type": "call_tool", "tool_name": "bash", "arguments": {"command": "cd /tmp; echo one > f; cat f"}},
        {"type": "call_tool", "tool_name": "read_file", "arguments": {"path": "f"}},
        {"type": "call_tool", "tool_name": "submit", "arguments": {}},
    ]
    report = check_env(SmallTerminal, actions=actions)
    assert report.ok, str(report)


@pytest.mark.parametrize("client", [MCPToolClient, TerminalEnv])
def test_a_rollout_plays_a_task_with_a_scripted_policy(
    terminal_server: Running, client: type[EnvClient[Any, Any, Any]]
) -> None:
    """The first turn does the work, the second submits; the reward is that of the grade."""
    work = {
        "find": "failed=$(grep failed auth.log | awk '{print $3}' | sort | uniq -c | sort -n | tail -1)",
        "write": "echo $failed | awk '{print $2, $1}' > answer.txt",
    }

    async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
        calls = [
            {"name": "bash", "arguments": {"command": "; ".join(work.values())}},
            {"name": "submit", "arguments": {}},
        ]
        assert {"bash", "submit"} <= {tool.name for prompt in prompts for tool in prompt.tools}
        turns = [sum(message["role"] == "assistant" for message in prompt.messages) for prompt in prompts]
        return [Completion(f"<tool_call>{json.dumps(calls[min(turn, 1)])}</tool_call>") for turn in turns]

    async def play() -> list[float | None]:
        async with Rollouts(client, terminal_server.url, policy, max_turns=4) as rollouts:
            groups = [group async for group in rollouts.groups([{"task": "search-a-log"}], size=2)]
            return [reward for group in groups for reward in group.rewards]

    assert asyncio.run(play()) == [1.0, 1.0]


def test_eval_plays_the_tasks_that_the_server_has(terminal_server: Running, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        'def say(messages): return \'<tool_call>{"name": "submit", "arguments": {}}</tool_call>\'\n'
    )
    options = ["--model", "scripted:script.py:say", "--tasks", "2", "--samples", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "envtorch.cli", "eval", terminal_server.url, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["tasks"], told["samples"]) == (2, 2)


def test_a_task_is_begun_as_the_routes_tell_it_unless_it_has_changed_since(terminal_server: Running) -> None:
    (name,) = get(f"{terminal_server.url}/list_environments").json()
    asked = post(f"{terminal_server.url}/{name}/task", json={"split": "tasks", "index": 1})
    task = asked.json()["task"]
    with TerminalEnv(terminal_server.url) as env:
        assert env.reset(task=task).observation.result == task["task"]["instruction"]
        assert env.state().task == task["id"]
        with pytest.raises(InvalidAction, match="has changed since it was asked for"):
            env.reset(task={"id": task["id"], "hash": "another"})


def test_trl_is_offered_the_tools_of_the_typed_client(terminal_server: Running) -> None:
    with TRLEnvironments(TerminalEnv, terminal_server.url) as environments:
        environment = environments()
        environment.reset(task="search-a-log")
        assert "auth.log" in environment.bash(command="ls")
        environment.submit()
        assert environment.get_reward() == 0.0
