"""Inspect AI evaluates in our environments and sandboxes. Run by `make test-train`."""

import asyncio
import inspect as introspection
import re
from pathlib import Path
from typing import Any

import pytest

from envtorch.rollout import NotAnAction
from tests.support import eventually
from tests.train.buttons import FORBIDDEN, ButtonsEnv, buttons, lose
from tests.train.conftest import Report
from tests.train.programs import run_example

inspect_ai = pytest.importorskip("inspect_ai", reason="Inspect AI is installed by `make test-train`")

from inspect_ai.agent import as_solver, react  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import ModelOutput, ModelUsage, get_model  # noqa: E402
from inspect_ai.solver import generate  # noqa: E402
from inspect_ai.util._sandbox import self_check  # noqa: E402

from envtorch.train.inspect_sandbox import InspectSandbox  # noqa: E402
from envtorch.train.inspect_solvers import in_session, play, session_reward, session_tools  # noqa: E402

pytestmark = pytest.mark.train

NOT_FOR_US = {
    "test_exec_as_user": "the sandbox has one user",
    "test_exec_as_nonexistent_user": "the sandbox has one user",
    "test_exec_large_command": "a command of a megabyte does not fit into one message",
}


def test_the_example_runs(report: Report) -> None:
    told = dict(line.split(": ", 1) for line in run_example("inspect_evaluation").strip().splitlines())
    assert told["by turns"] == told["by tools"] == "{'mean': 1.0, 'stderr': 0.0}"
    assert told["in our sandbox"] == "{'accuracy': 1.0, 'stderr': 0.0}"
    for name, result in told.items():
        report(f"evaluation, {name}", result)


def test_our_sandbox_passes_inspects_own_checks(report: Report) -> None:
    checks = {
        name: check
        for name, check in vars(self_check).items()
        if name.startswith("test_") and introspection.iscoroutinefunction(check)
    }
    assert checks.keys() >= NOT_FOR_US.keys()

    async def run() -> None:
        sandbox = await InspectSandbox.open()
        try:
            for name, check in checks.items():
                if name not in NOT_FOR_US:
                    await check(sandbox)
        finally:
            await sandbox.close()

    asyncio.run(run())
    report("sandbox provider, Inspect's own checks", f"{len(checks) - len(NOT_FOR_US)} of {len(checks)}")


def evaluate(solver: Any, answer: Any, logs: Path, *, forbids: bool = False) -> Any:
    """The log of one sample whose model gives `answer(messages)`."""

    def model(messages: Any, tools: Any, choice: Any, config: Any) -> ModelOutput:
        output = answer(messages)
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    sample = Sample(input="Press.", metadata={"reset": {"seed": 1, "forbids": forbids}})
    task = inspect_ai.Task([sample], solver=solver, scorer=session_reward())
    mock = get_model("mockllm/model", custom_outputs=model)
    (log,) = inspect_ai.eval(task, model=mock, log_dir=str(logs), display="none")
    return log


def say(text: str) -> ModelOutput:
    return ModelOutput.from_content("mockllm/model", text)


def press_then_submit(messages: Any) -> ModelOutput:
    """A model that calls `step` with what is lit, and Inspect's `submit` when the episode is over."""
    told = messages[-1].text
    if "The episode is over." in told:
        return ModelOutput.for_tool_call("mockllm/model", "submit", {"answer": "pressed"})
    light = int(re.findall(r"\d", told)[-1])
    return ModelOutput.for_tool_call("mockllm/model", "step", {"button": light})


def test_inspects_react_agent_plays_with_the_sessions_tools(report: Report, tmp_path: Path) -> None:
    agent = as_solver(react(tools=[session_tools()]))
    with buttons() as server:
        log = evaluate(in_session(ButtonsEnv, server.url, agent), press_then_submit, tmp_path)
        assert log.status == "success", log.error
        (sample,) = log.samples
        (score,) = sample.scores.values()
        assert (score.value, score.explanation) == (pytest.approx(1.0), "done")
        assert score.answer.endswith("pressed")
        called = [call.function for one in sample.messages for call in getattr(one, "tool_calls", None) or ()]
        assert called == ["step"] * 3, "react turns its call of `submit` into the answer"
        eventually(lambda: server.sessions.active == 0, "every session is closed")
    report("react(tools=[session_tools()])", "reward 1.00 in 3 calls, then submit")


def test_the_sessions_tools_without_a_session_say_what_is_missing(tmp_path: Path) -> None:
    agent = as_solver(react(tools=[session_tools()]))
    log = evaluate(agent, press_then_submit, tmp_path)
    assert log.status == "error"
    assert "session_tools() has tools inside `in_session` only" in log.error.message


def test_what_is_not_the_policys_fault_is_an_error_and_no_score(report: Report, tmp_path: Path) -> None:
    with buttons() as server:
        failing = evaluate(
            play(ButtonsEnv, server.url),
            lambda _: say(f'{{"button": {FORBIDDEN}}}'),
            tmp_path,
            forbids=True,
        )

        def losing(messages: Any) -> ModelOutput:
            lose(server)
            return say('{"button": 1}')

        lost = evaluate(play(ButtonsEnv, server.url), losing, tmp_path)

        def failing_tool(messages: Any) -> ModelOutput:
            return ModelOutput.for_tool_call("mockllm/model", "step", {"button": FORBIDDEN})

        solver = in_session(ButtonsEnv, server.url, generate())
        by_tool = evaluate(solver, failing_tool, tmp_path, forbids=True)
        for log, error in ((failing, "EnvironmentFailed"), (lost, "SessionLost"), (by_tool, "Environment")):
            assert log.status == "error"
            assert error in log.error.traceback
        chatting = evaluate(play(ButtonsEnv, server.url), lambda _: say("I would rather not."), tmp_path)
        assert chatting.status == "success"
        (score,) = chatting.samples[0].scores.values()
        assert (score.value, score.explanation) == (0.0, f"policy: {NotAnAction.__name__}")
        eventually(lambda: server.sessions.active == 0, "every session is closed")
    report("lost and failing episodes", "errors of the sample, not scored")
