"""Formats: what a policy reads of an observation, and what becomes of what it says."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from envtorch import GenericEnvClient
from envtorch.client import MCPToolClient
from envtorch.envs.coding_env import CodingEnv, CodingToolEnv
from envtorch.envs.coding_env.models import CodeObservation
from envtorch.envs.repl_env import REPLEnv
from envtorch.envs.terminal_env import TerminalEnv
from envtorch.llm import ToolCall
from envtorch.rollout import (
    CodeFormat,
    Completion,
    Ending,
    JSONFormat,
    NotAnAction,
    Prompt,
    Rollouts,
    Task,
    ToolFormat,
    default_format,
)
from envtorch.rollout.chat_formats import observation_text
from envtorch.server import create_app
from envtorch.tools import CallToolAction, CallToolObservation, CallToolResult
from tests.rollout.dials import DialEnv, Press, Seen
from tests.support import running
from tests.tools.environments import Basket


def test_the_format_follows_from_the_client() -> None:
    assert isinstance(default_format(DialEnv), JSONFormat)
    assert isinstance(default_format(GenericEnvClient), JSONFormat)
    assert isinstance(default_format(CodingEnv), CodeFormat)
    assert isinstance(default_format(REPLEnv), CodeFormat)
    assert isinstance(default_format(MCPToolClient), ToolFormat)
    assert isinstance(default_format(TerminalEnv), ToolFormat)
    assert isinstance(default_format(CodingToolEnv), ToolFormat)


@pytest.mark.parametrize(
    "text", ['{"number": 7}', 'I choose\n```json\n{"number": 7}\n```', 'Seven: {"number": 7}.']
)
def test_json_is_found_in_what_was_said(text: str) -> None:
    assert default_format(DialEnv).actions(Completion(text)) == [Press(number=7)]


@pytest.mark.parametrize("text", ["seven", '{"number": "seven"}', '{"number": 7', "{}", '{"size": 7}', "}{"])
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(NotAnAction):
        default_format(DialEnv).actions(Completion(text))


def test_the_schema_is_told_to_the_policy() -> None:
    system = default_format(DialEnv).system
    assert '"number"' in system
    assert "metadata" not in system


def test_the_last_block_of_code_is_run() -> None:
    said = "First\n```python\nx = 1\n```\nthen\n```python\nprint(x)\n```"
    assert [action.code for action in default_format(CodingEnv).actions(Completion(said))] == ["print(x)\n"]
    with pytest.raises(NotAnAction):
        default_format(CodingEnv).actions(Completion("print(x)"))


def test_an_answer_without_code_ends_an_episode_that_asks_for_one() -> None:
    (action,) = default_format(REPLEnv).actions(Completion("The gardener."))
    assert (action.is_final, action.final_answer) == (True, "The gardener.")


@dataclass
class TextContent:
    text: str
    type: str = "text"


@dataclass
class Bare:
    text: str


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (Seen(hint="lower", reward=1.0), "lower"),
        (CodeObservation(stdout="1\n2\n", exit_code=0), "stdout: \n1\n2\n\nexit_code: 0\noutcome: ok"),
        ({"board": [1, 2], "reward": 3}, "board: [1, 2]"),
        (Bare("hello"), "hello"),
        ("as it is", "as it is"),
        (
            CallToolObservation(tool_name="t", result=CallToolResult([TextContent("a"), TextContent("b")])),
            "a\nb",
        ),
        (CallToolObservation(tool_name="t", result=vars(CallToolResult(data=[1, 2]))), "[1, 2]"),
        (CallToolObservation(tool_name="t", result={"content": "my own"}), '{"content": "my own"}'),
    ],
)
def test_an_observation_is_told_without_what_is_the_trainers(observation: Any, text: str) -> None:
    assert observation_text(observation) == text


def test_tool_calls_in_the_text_are_read() -> None:
    said = 'Now:\n<tool_call>\n{"name": "put", "arguments": {"thing": "apple"}}\n</tool_call>'
    (action,) = ToolFormat().actions(Completion(said))
    assert (action.tool_name, action.arguments) == ("put", {"thing": "apple"})
    with pytest.raises(NotAnAction):
        ToolFormat().actions(Completion("<tool_call>put apple</tool_call>"))
    assert list(ToolFormat().actions(Completion("I am done."))) == []


@pytest.mark.parametrize("arguments", ["ls", ["ls"], 3, None])
@pytest.mark.parametrize("is_parsed", [True, False])
def test_arguments_that_are_no_object_are_told_to_the_model(arguments: Any, is_parsed: bool) -> None:
    async def careless(prompts: Sequence[Prompt]) -> list[Completion]:
        text = f"<tool_call>{json.dumps({'name': 'put', 'arguments': arguments})}</tool_call>"
        call = Completion(tool_calls=[ToolCall("a", "put", arguments)]) if is_parsed else Completion(text)
        return [call if len(prompt.messages) == 1 else Completion("I see.") for prompt in prompts]

    async def play(url: str) -> Any:
        async with Rollouts(MCPToolClient, url, careless) as rollouts:
            return await rollouts.run(Task(prompt="Buy fruit."))

    with running(create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=4)) as server:
        played = asyncio.run(play(server.url))
    assert played.ending is Ending.DONE, played.blame
    assert [message["role"] for message in played.messages] == ["user", "assistant", "tool", "assistant"]
    assert "the arguments of put are a JSON object, not" in played.messages[2]["content"]


def test_rollouts_offer_an_environments_tools_and_answer_each_call() -> None:
    offered: list[Sequence[str]] = []

    async def shopper(prompts: Sequence[Prompt]) -> list[Completion]:
        offered.extend([tool.name for tool in prompt.tools] for prompt in prompts)
        calls = [ToolCall("a", "put", {"thing": "apple"}), ToolCall("b", "put", {"thing": "pear"})]
        first = [len(prompt.messages) == 1 for prompt in prompts]
        return [Completion(tool_calls=calls) if new else Completion("All there.") for new in first]

    async def play(url: str) -> Any:
        async with Rollouts(MCPToolClient, url, shopper) as rollouts:
            return await rollouts.run(Task(prompt="Buy fruit."))

    with running(create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=4)) as server:
        played = asyncio.run(play(server.url))
    assert offered == [["put", "look", "drop"]] * 2
    assert played.ending is Ending.DONE, played.blame
    assert [message["role"] for message in played.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [message["tool_call_id"] for message in played.messages[2:4]] == ["a", "b"]
    assert [message["content"] for message in played.messages[2:4]] == ["1", "2"]
    assert played.reward == 1.0 + 2.0
