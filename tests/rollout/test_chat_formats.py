"""Formats: what a policy reads of an observation, and what becomes of what it says."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from envtorch import Action, GenericEnvClient
from envtorch.client import MCPToolClient
from envtorch.envs.coding_env import CodingEnv, CodingToolEnv
from envtorch.envs.coding_env.models import CodeObservation
from envtorch.envs.repl_env import REPLEnv
from envtorch.envs.terminal_env import TerminalEnv
from envtorch.llm import ToolCall
from envtorch.rollout import (
    CodeFormat,
    Completion,
    CutCompletion,
    Ending,
    JSONFormat,
    NotAnAction,
    Prompt,
    Rollouts,
    Task,
    ToolFormat,
    TrajectoryFile,
    TrajectoryGroup,
    default_format,
)
from envtorch.rollout.chat_formats import observation_text
from envtorch.server import create_app
from envtorch.tools import CallToolAction, CallToolObservation, CallToolResult
from tests.rollout.dials import DialEnv, Press, Seen
from tests.support import cpu_s, running
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


@pytest.mark.parametrize(
    "text",
    [
        'Now:\n<tool_call>\n{"name": "put", "arguments": {"thing": "app',
        '<tool_call>{"name": "put", "arguments": {}}</tool_call>\n<tool_call>{"name": "put", "argu',
        "<tool_call>",
    ],
)
def test_a_tool_call_that_is_not_closed_is_no_action(text: str) -> None:
    with pytest.raises(CutCompletion, match="not closed"):
        ToolFormat().actions(Completion(text))


def test_a_completion_that_was_cut_before_a_call_does_not_end_the_episode_as_done() -> None:
    with pytest.raises(CutCompletion, match="cut at max_tokens"):
        ToolFormat().actions(Completion("Let me think about", is_cut=True))
    call = '<tool_call>{"name": "put", "arguments": {}}</tool_call>'
    assert len(ToolFormat().actions(Completion(f"{call} and", is_cut=True))) == 1, "the call is whole"


@pytest.mark.parametrize("client", [REPLEnv, CodingEnv])
@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1",
        "First\n```python\nx = 1\n```\nthen\n```python\nprint(x",
        "So: ```py",
        "```repl\nx",
    ],
)
def test_a_block_of_code_that_is_not_closed_is_neither_run_nor_an_answer(client: Any, text: str) -> None:
    with pytest.raises(CutCompletion, match="not closed"):
        default_format(client).actions(Completion(text))


def test_an_answer_that_was_cut_is_not_given() -> None:
    with pytest.raises(CutCompletion, match="cut at max_tokens"):
        default_format(REPLEnv).actions(Completion("The garden", is_cut=True))
    (action,) = default_format(REPLEnv).actions(Completion("```python\nx = 1\n```\nand", is_cut=True))
    assert action.code == "x = 1\n"


def test_a_fence_left_over_after_a_block_does_no_harm() -> None:
    (action,) = default_format(CodingEnv).actions(Completion("```python\nx = 1\n```\n```\n"))
    assert action.code == "x = 1\n"


def test_code_within_a_line_of_an_answer_is_part_of_the_answer() -> None:
    (action,) = default_format(REPLEnv).actions(Completion("Call ```python main()```."))
    assert action.final_answer == "Call ```python main()```."


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```bash\nls\n```\nThen run this:\n```python\nprint(42)\n```\n", "print(42)\n"),
        ("```json\n{}\n```\n```python\nx = 1\n```\n```text\nthe output\n```", "x = 1\n"),
        ("```Python\nx = 1\n```", "x = 1\n"),
        ("```python3 \nx = 1\n```", "x = 1\n"),
        ('```py title="one.py"\nx = 1\n```', "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("Use ```x``` here:\n```python\nx = 1\n```", "x = 1\n"),
        ("So: ```python\nx = 1\n```", "x = 1\n"),
    ],
)
@pytest.mark.parametrize("client", [REPLEnv, CodingEnv])
def test_fences_of_other_languages_are_no_code(client: Any, text: str, code: str) -> None:
    (action,) = default_format(client).actions(Completion(text))
    assert action.code == code


def test_blocks_of_other_languages_alone_are_part_of_the_answer() -> None:
    text = "It is\n```json\n{}\n```"
    (action,) = default_format(REPLEnv).actions(Completion(text))
    assert action.final_answer == text
    with pytest.raises(NotAnAction, match="no block of Python code"):
        default_format(CodingEnv).actions(Completion(text))


class ShortCode(Action):
    code: str = Field(max_length=3)


def test_code_that_the_action_refuses_is_no_action() -> None:
    with pytest.raises(NotAnAction, match="code: String should have at most 3 characters"):
        CodeFormat(ShortCode).actions(Completion("```python\nprint(1)\n```"))


def test_a_call_that_is_nested_too_deeply_is_no_action() -> None:
    arguments = "[" * 100_000 + "]" * 100_000
    with pytest.raises(NotAnAction, match="a tool call cannot be read"):
        ToolFormat().actions(
            Completion(f'<tool_call>{{"name": "put", "arguments": {arguments}}}</tool_call>')
        )


@pytest.mark.parametrize("client", [MCPToolClient, CodingEnv, REPLEnv])
@pytest.mark.parametrize(
    "piece",
    ["<tool_call>", "<tool_call> \n", "```python ", "```python\n", "```", "`", "{", "</tool_call>"],
)
@pytest.mark.parametrize("tail", [" ", "\n", "x"])
def test_a_completion_that_repeats_itself_is_read_in_one_pass(client: Any, piece: str, tail: str) -> None:
    format = default_format(client)

    def read(length: int) -> None:
        text = piece * (length // len(piece)) + tail * length
        with suppress(NotAnAction):
            format.actions(Completion(text))

    assert cpu_s(lambda: read(160_000)) < 60 * max(cpu_s(lambda: read(20_000)), 0.0001)


def test_a_call_may_speak_of_calls() -> None:
    text = '<tool_call> {"name": "put", "arguments": {"thing": "<tool_call>"}}\n</tool_call> <tool_call'
    (call,) = ToolFormat().actions(Completion(text))
    assert call.arguments == {"thing": "<tool_call>"}


def test_a_cut_completion_is_named_in_the_ending_and_in_a_file(tmp_path: Path) -> None:
    async def cut(prompts: Sequence[Prompt]) -> list[Completion]:
        return [Completion('<tool_call>{"name": "put", "argu') for _ in prompts]

    async def play(url: str) -> Any:
        async with Rollouts(MCPToolClient, url, cut) as rollouts:
            return await rollouts.run(Task(prompt="Buy fruit."))

    with running(create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=4)) as server:
        played = asyncio.run(play(server.url))
    assert (played.ending, played.cause) == (Ending.POLICY, "policy: CutCompletion")
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    file.add(TrajectoryGroup(played.task, (played,)))
    assert [read.cause for read in file] == ["policy: CutCompletion"]
