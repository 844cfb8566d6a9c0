"""Sessions of tools, the loop that uses them, and what is collected from it."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from envtorch.compat.harness import (
    CLIHarnessAdapter,
    HarnessRolloutResult,
    HarnessRunLimits,
    MCPHarnessAdapter,
    ModelStepResult,
    ResourceSessionFactory,
    SessionMCPBridge,
    StepEnvSessionAdapter,
    VerifyResult,
    build_harness_rollout_func,
)
from envtorch.compat.harness.collect import CollectRunner, EpisodeRecord, RolloutSerializer, build_model_step
from envtorch.compat.harness.publish import build_dataset_readme
from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.llm import LLMClient, LLMResponse, ToolCall
from envtorch.types import Tool

SAY = Tool(name="say", description="Say it.", input_schema={"type": "object"})


def session(task: Any = "t", **options: Any) -> StepEnvSessionAdapter:
    """A session on a real environment, in this process."""
    return StepEnvSessionAdapter(
        client=EchoEnv.local(),
        task=task,
        tool_specs=options.pop("tool_specs", [SAY]),
        action_builder=lambda name, arguments: EchoAction(message=arguments["text"]),
        initial_messages_builder=lambda result, task: [{"role": "user", "content": f"task {task}"}],
        **options,
    )


class Sessions(ResourceSessionFactory):
    def create(
        self, task: Any, seed: int | None = None, episode_id: str | None = None
    ) -> StepEnvSessionAdapter:
        if task == "impossible":
            raise RuntimeError("no such task")
        return session(task, episode_id=episode_id)


def says(*texts: str) -> Any:
    """A model that says these things, one per turn, and then nothing."""
    left = list(texts)

    def step(messages: Any, tools: Any, sampling: Any) -> ModelStepResult:
        calls = [ToolCall("c", "say", {"text": left.pop(0)})] if left else []
        return ModelStepResult(LLMResponse("hm", calls), prompt_ids=[1], completion_ids=[2], logprobs=[-0.5])

    return step


def test_the_loop_goes_on_until_the_model_has_nothing_to_do() -> None:
    rollout = MCPHarnessAdapter().run_white_box(says("a", "bb"), session())
    assert [entry.arguments["text"] for entry in rollout.tool_trace] == ["a", "bb"]
    assert [message["role"] for message in rollout.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert rollout.prompt_ids == [1, 1, 1]
    assert rollout.metrics == {"turns": 3, "tool_calls": 2}


def test_limits_are_kept() -> None:
    endless = says(*"abcdefgh")
    rollout = MCPHarnessAdapter().run_white_box(endless, session(), HarnessRunLimits(max_turns=3))
    assert len(rollout.tool_trace) == 3
    rollout = MCPHarnessAdapter().run_white_box(endless, session(), HarnessRunLimits(max_tool_calls=2))
    assert len(rollout.tool_trace) == 2


def test_a_models_mistake_is_told_to_it() -> None:
    def wrong(messages: Any, tools: Any, sampling: Any) -> ModelStepResult:
        done = any(message["role"] == "tool" for message in messages)
        return ModelStepResult(LLMResponse("", [] if done else [ToolCall("c", "sing", {})]))

    rollout = MCPHarnessAdapter().run_white_box(wrong, session())
    assert "sing" in rollout.messages[2]["content"]


def test_rollouts_for_a_trainer() -> None:
    rollout = build_harness_rollout_func(Sessions(), MCPHarnessAdapter(), lambda trainer, s: says("abc"))
    columns = rollout(["one", "two"], trainer=None)
    assert columns["env_reward"] == [pytest.approx(0.3)] * 2
    assert columns["completion_ids"] == [[2, 2], [2, 2]]
    assert columns["verify_metrics"] == [{"step_count": 1}] * 2


def test_a_verdict_that_makes_up_a_reward_is_refused() -> None:
    class Generous(Sessions):
        def create(self, task: Any, *_: Any, **__: Any) -> StepEnvSessionAdapter:
            return session(task, verify_builder=lambda *_: VerifyResult(env_reward=9.0))

    rollout = build_harness_rollout_func(Generous(), MCPHarnessAdapter(), lambda trainer, s: says("a"))
    with pytest.raises(ValueError, match="must forward the environment reward"):
        rollout(["one"])


def test_controls_are_no_tools() -> None:
    bridge = SessionMCPBridge(session())

    def call(name: str, **arguments: Any) -> Any:
        params = {"name": name, "arguments": arguments}
        return bridge.handle_request({"id": 1, "method": "tools/call", "params": params})

    assert call("say", text="hi")["result"]["data"]["observation"]["echoed_message"] == "hi"
    assert "Reserved" in call("reset")["error"]["message"]
    assert call("sing")["error"]["message"] == "Unknown tool: sing"
    assert bridge.handle_request({"id": 2, "method": "x"})["error"]["code"] == -32601
    with pytest.raises(ValueError, match="reserved"):
        session(tool_specs=[Tool(name="step", description="", input_schema={})])


def test_an_agent_that_runs_by_itself() -> None:
    def agent(bridge: SessionMCPBridge, session: Any, limits: HarnessRunLimits) -> HarnessRolloutResult:
        listed = bridge.handle_request({"id": 1, "method": "tools/list"})
        return HarnessRolloutResult(metrics={"tools": [t["name"] for t in listed["result"]["tools"]]})

    result = CLIHarnessAdapter(agent).run_black_box(session())
    assert result.metrics == {"tools": ["say"]}


def test_a_collection_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def collect(tasks: list[Any], count: int, **options: Any) -> Any:
        runner = CollectRunner(Sessions(), MCPHarnessAdapter(), RolloutSerializer(tmp_path), tasks=tasks)
        return runner.run(lambda *given: says("ab")(*given), count, **options)

    limits = {"should_keep": lambda record: record.reward > 0}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        first = collect(["a", "impossible"], 2, **limits)
    assert (first.num_collected, first.num_failed) == (1, 1)
    assert "no such task" in str(heard[-1].message)
    second = collect(["a", "b", "c"], 3, **limits)
    assert (second.num_skipped, second.num_collected) == (1, 2)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines] == ["a", "b", "c"]
    with pytest.warns(RuntimeWarning, match="moved existing results"):
        again = collect(["a"], 1, resume=False)
    assert again.num_collected == 1
    assert "**Episodes:** 1" in build_dataset_readme(tmp_path)


def test_a_record_is_plain_json() -> None:
    rollout = HarnessRolloutResult(messages=[{"role": "user", "content": "?"}])
    record = EpisodeRecord.from_rollout("e", rollout, VerifyResult(env_reward=1.0), task=Path("t.json"))
    assert json.loads(json.dumps(record.to_dict()))["task"] == "t.json"


class Parrot(LLMClient):
    async def complete(self, prompt: str, **options: Any) -> str:
        return ""

    async def complete_with_tools(self, messages: Any, tools: Any, **options: Any) -> LLMResponse:
        return LLMResponse(f"{messages[0]['content']} {tools[0]['name']} {sorted(options)}")


def test_a_model_as_a_step() -> None:
    step = build_model_step(Parrot("http://127.0.0.1", 1), system_prompt="be kind")
    with pytest.warns(RuntimeWarning, match="unsupported sampling keys: colour"):
        said = step([{"role": "user", "content": "?"}], [SAY], {"temperature": 1, "colour": "red"})
    assert said.response.content == "be kind say ['temperature']"
