"""Every bundled task, solved through MCP by the official client, in `envtorch play`, and by a rollout."""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envtorch import create_app
from envtorch.client import MCPToolClient
from envtorch.envs.terminal_env.harbor import BUNDLED
from envtorch.rollout import Completion, Prompt, Rollouts
from tests.cli.terminal import Terminal
from tests.envs.terminal_env.conftest import SmallTerminal
from tests.envs.terminal_env.episodes import NAMES, solution_of
from tests.patient import get, post
from tests.sandbox.roots import require_host_root
from tests.support import PATIENCE_S, Running, running

pytestmark = pytest.mark.terminal
ROOT = Path(__file__).parents[3]
SESSION = "EnvTorch-Session"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    require_host_root()
    with running(create_app(SmallTerminal, sessions=64)) as server:
        yield server


def instruction_of(task: str) -> str:
    return (BUNDLED / task / "instruction.md").read_text()


async def solve_over_mcp(url: str, token: str, task: str) -> str:
    """What an agent does that has nothing but tools: it joins the session that its trainer has prepared."""
    mcp = pytest.importorskip("mcp")
    httpx = pytest.importorskip("httpx2", reason="needs mcp 2, which makes its requests with httpx2")
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx.AsyncClient(headers={SESSION: token}, timeout=PATIENCE_S) as http,
        streamable_http_client(f"{url}/mcp", http_client=http, terminate_on_close=False) as streams,
        mcp.ClientSession(streams[0], streams[1]) as agent,
    ):
        await agent.initialize()
        assert "bash" in [tool.name for tool in (await agent.list_tools()).tools]
        worked = await agent.call_tool("bash", {"command": solution_of(task)})
        submitted = await agent.call_tool("submit", {})
        assert not submitted.is_error, submitted
        return f"{worked.content[0].text} {submitted.content[0].text}"


@pytest.mark.parametrize("task", NAMES)
def test_the_official_mcp_client_solves_it_in_a_session_of_its_trainer(server: Running, task: str) -> None:
    begun = post(f"{server.url}/reset", json={"task": task})
    assert begun.json()["observation"]["result"] == instruction_of(task)
    headers = {SESSION: begun.headers[SESSION]}
    assert get(f"{server.url}/state", headers=headers).json()["reward"] is None
    told = asyncio.run(solve_over_mcp(server.url, headers[SESSION], task))
    assert "submitted" in told
    state = get(f"{server.url}/state", headers=headers).json()
    assert (state["task"], state["submitted"], state["reward"]) == (task, True, 1.0), told


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize("task", NAMES)
def test_a_person_solves_it_in_play(server: Running, task: str) -> None:
    reset = ["--reset", json.dumps({"task": task})]
    command = [sys.executable, "-m", "envtorch.cli", "play", server.url, *reset]
    with Terminal(command, cwd=ROOT) as terminal:
        terminal.wait_for("0 steps", "▸ tool_name *")
        terminal.write("bash")
        terminal.wait_for("tool_name * bash")
        terminal.press("Tab")
        terminal.wait_for("▸ arguments")
        terminal.write(json.dumps({"command": solution_of(task)}))
        terminal.press("F5")
        terminal.wait_for("1 step ")
        terminal.press("C-u")
        terminal.wait_for("▸ arguments JSON")
        terminal.press("BTab")
        terminal.wait_for("▸ tool_name * bash")
        terminal.press("C-u")
        terminal.wait_for("▸ tool_name * text")
        terminal.write("submit")
        terminal.wait_for("▸ tool_name * submit")
        terminal.press("F5")
        screen = terminal.wait_for("2 steps", "the episode is over")
        terminal.keep(f"play-{task}")
        assert "return 1" in screen, screen
        terminal.press("C-q")
        terminal.wait_for("exited with 0")


def test_rollouts_with_a_scripted_policy_solve_all_of_them(server: Running) -> None:
    solutions = {instruction_of(task).strip(): solution_of(task) for task in NAMES}

    def turn(prompt: Prompt) -> Completion:
        texts = [str(message["content"]) for message in prompt.messages]
        (command,) = [solution for told, solution in solutions.items() if any(told in text for text in texts)]
        is_first = not any(message["role"] == "assistant" for message in prompt.messages)
        call = {"name": "bash", "arguments": {"command": command}} if is_first else {"name": "submit"}
        return Completion(f"<tool_call>{json.dumps({'arguments': {}, **call})}</tool_call>")

    async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
        return [turn(prompt) for prompt in prompts]

    async def play() -> dict[str, list[float | None]]:
        async with Rollouts(MCPToolClient, server.url, policy, max_turns=4, concurrency=8) as rollouts:
            groups = [group async for group in rollouts.groups([{"task": task} for task in NAMES], size=2)]
            return {str(group.task.options["task"]): list(group.rewards) for group in groups}

    assert asyncio.run(play()) == {task: [1.0, 1.0] for task in NAMES}
