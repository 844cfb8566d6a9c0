"""Inspect AI evaluates in our environments and sandboxes. Run by `make test-train`."""

import asyncio
import inspect as introspection
from pathlib import Path
from typing import Any

import pytest

from envtorch.rollout import NotAnAction
from tests.support import eventually
from tests.train.buttons import FORBIDDEN, ButtonsEnv, buttons, lose
from tests.train.conftest import Report
from tests.train.programs import run_example

inspect_ai = pytest.importorskip("inspect_ai", reason="Inspect AI is installed by `make test-train`")

from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import ModelOutput, ModelUsage, get_model  # noqa: E402
from inspect_ai.solver import generate  # noqa: E402
from inspect_ai.util._sandbox import self_check  # noqa: E402

from envtorch.train.inspect_sandbox import InspectSandbox  # noqa: E402
from envtorch.train.inspect_solvers import in_session, play, session_reward  # noqa: E402

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


def evaluate(solver: Any, answer: Any, logs: Path) -> Any:
    """The log of one sample whose model gives `answer(messages)`."""

    def model(messages: Any, tools: Any, choice: Any, config: Any) -> ModelOutput:
        output = answer(messages)
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    sample = Sample(input="Press.", metadata={"reset": {"seed": 1, "forbids": True}})
    task = inspect_ai.Task([sample], solver=solver, scorer=session_reward())
    mock = get_model("mockllm/model", custom_outputs=model)
    (log,) = inspect_ai.eval(task, model=mock, log_dir=str(logs), display="none")
    return log


def say(text: str) -> ModelOutput:
    return ModelOutput.from_content("mockllm/model", text)


def test_what_is_not_the_policys_fault_is_an_error_and_no_score(report: Report, tmp_path: Path) -> None:
    with buttons() as server:
        failing = evaluate(
            play(ButtonsEnv, server.url), lambda _: say(f'{{"button": {FORBIDDEN}}}'), tmp_path
        )

        def losing(messages: Any) -> ModelOutput:
            lose(server)
            return say('{"button": 1}')

        lost = evaluate(play(ButtonsEnv, server.url), losing, tmp_path)

        def failing_tool(messages: Any) -> ModelOutput:
            return ModelOutput.for_tool_call("mockllm/model", "step", {"button": FORBIDDEN})

        by_tool = evaluate(in_session(ButtonsEnv, server.url, generate()), failing_tool, tmp_path)
        for log, error in ((failing, "EnvironmentFailed"), (lost, "SessionLost"), (by_tool, "Environment")):
            assert log.status == "error"
            assert error in log.error.traceback
        chatting = evaluate(play(ButtonsEnv, server.url), lambda _: say("I would rather not."), tmp_path)
        assert chatting.status == "success"
        (score,) = chatting.samples[0].scores.values()
        assert (score.value, score.explanation) == (0.0, f"policy: {NotAnAction.__name__}")
        eventually(lambda: server.sessions.active == 0, "every session is closed")
    report("lost and failing episodes", "errors of the sample, not scored")
