"""The coding environment itself."""

import copy
from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

import pydantic

from envtorch.env import Environment, Rubric, Transform
from envtorch.envs.coding_env.code_tools import CODE_TOOLS, SandboxTools, failed_call, told_of_code
from envtorch.envs.coding_env.executors import AwaitedExecutor, ExecutorName, open_executor
from envtorch.envs.coding_env.models import CodeAction, CodeObservation, CodeState, CodeToolObservation
from envtorch.envs.coding_env.observing import observe
from envtorch.envs.coding_env.transforms import CODE_KEY, PARSED_KEY, transform_named
from envtorch.envs.tool_arguments import ToolArguments, describe_tools, explain_arguments
from envtorch.errors import ConfigurationError, EnvironmentFailed, MissingExtra, Unsupported
from envtorch.sandbox import AsyncSandbox, Policy
from envtorch.tools import CallToolAction, ListToolsAction, ListToolsObservation, ToolErrorType
from envtorch.types import EnvironmentMetadata, Tool

__all__ = ["CodingEnvironment"]

RESERVE_S = 1.0
"""What is kept of the caller's time, half of it at most, for stopping code and telling how it went."""


class CodingEnvironment(Environment[CodeAction, CodeObservation, CodeState]):
    """Runs an agent's code in a sandbox of its own, with its state kept until the next `reset`.

    An action is code, or a call of a tool: `python`, `bash` and the tools for files work in one workspace.

    Whatever the code does is an observation: an error, a limit, a crash. An interpreter that did not
    survive ends the episode; the session goes on, with the next `reset`.

    It awaits, so that hundreds of sessions need no thread each and a step can be cancelled: one that
    is past the caller's deadline is interrupted, and the session stays usable.

    A `rubric` gives the reward; a `transform` may change it. With neither there is no reward.
    `transform="openenv"` gives the rewards of OpenEnv's coding environment.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    TOOLS_REQUIRE_RESET = True

    def __init__(
        self,
        *,
        executor: ExecutorName = "sandbox",
        policy: Policy | None = None,
        transform: Transform[CodeObservation] | Literal["openenv"] | None = None,
        rubric: Rubric | None = None,
    ) -> None:
        if isinstance(transform, str):
            transform = transform_named(transform)
        super().__init__(transform=transform, rubric=rubric)
        if executor not in ("sandbox", "smolagents"):
            raise ConfigurationError(f"there is no executor {executor!r}: it is 'sandbox' or 'smolagents'")
        self._executor_name = executor
        self._policy = policy or Policy(preload=("random",))
        self._executor: AwaitedExecutor | None = None
        self._unsettled = False
        self._state = CodeState(episode_id=str(uuid4()))

    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> CodeObservation:
        """A fresh interpreter and an empty workspace; `seed` seeds its `random`."""
        self._state = CodeState(episode_id=episode_id or str(uuid4()))
        await self._reset_rubric_async()
        await self._close_executor()
        executor = await self._open_executor()
        if seed is not None and self._executor_name == "sandbox":
            await executor.run(f"__import__('random').seed({int(seed)})")
        is_scored = self.transform is not None or self.rubric is not None
        return self._apply_transform(CodeObservation(reward=0.0 if is_scored else None))

    async def step(
        self, action: CodeAction | CallToolAction | ListToolsAction, timeout_s: float | None = None
    ) -> Any:
        """Run the code, or call a tool; the observation says how it went, whatever it did."""
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=self.describe_tools())
        if isinstance(action, CallToolAction):
            observation: CodeObservation = await self._call_tool(action, timeout_s)
        else:
            observation = await self._run_code(action.code, timeout_s)
        self._state.last_exit_code = observation.exit_code
        if self.rubric is not None:
            acted: Any = action  # a rubric sees calls of tools too
            observation.reward = await self._apply_rubric_async(acted, observation)
        return self._apply_transform(observation)

    async def _run_code(self, code: str, timeout_s: float | None) -> CodeObservation:
        executor = await self._ready_executor()
        self._state.step_count += 1
        self._unsettled = True
        result = await executor.run(code, timeout_s=self._limit(timeout_s))
        self._unsettled = False
        observation = observe(result, self._policy, limit_s=self._limit(timeout_s))
        if self.transform is not None or self.rubric is not None:  # what scores reads these
            observation.metadata |= {CODE_KEY: code, PARSED_KEY: result.parsed}
        return observation

    async def _call_tool(self, action: CallToolAction, timeout_s: float | None) -> CodeToolObservation:
        name, tools = action.tool_name, self._tools
        if name not in tools:
            told = f"there is no tool {name!r}; there are: {', '.join(tools)}"
            return failed_call(name, ToolErrorType.TOOL_NOT_FOUND, told)
        try:
            arguments = tools[name].model_validate(action.arguments).model_dump()
        except pydantic.ValidationError as error:
            return failed_call(name, ToolErrorType.INVALID_ARGS, explain_arguments(error))
        if name == "python":
            return told_of_code(await self._run_code(arguments["code"], timeout_s))
        executor = await self._ready_executor()
        assert isinstance(executor, AsyncSandbox), "the other executor has no such tools"
        self._state.step_count += 1
        return await SandboxTools(executor).call(name, arguments, self._limit(timeout_s))

    @property
    def _tools(self) -> Mapping[str, type[ToolArguments]]:
        has_files = self._executor_name == "sandbox"
        return CODE_TOOLS if has_files else {"python": CODE_TOOLS["python"]}

    def describe_tools(self) -> list[Tool]:
        """The tools there are: Python, commands and files; with smolagents' interpreter Python alone."""
        return describe_tools(self._tools)

    async def fork(self) -> "CodingEnvironment":
        """An exact copy between two steps: the live interpreter, its files, the counters, the rubric."""
        executor = self._executor
        if executor is not None and not isinstance(executor, AsyncSandbox):
            raise Unsupported(f"the {self._executor_name} executor cannot be forked; 'sandbox' can")
        twin = CodingEnvironment(
            policy=self._policy, transform=copy.deepcopy(self.transform), rubric=copy.deepcopy(self.rubric)
        )
        twin._state = self._state.model_copy(deep=True)
        if executor is not None:
            (twin._executor,) = await executor.fork(1)
        return twin

    @property
    def state(self) -> CodeState:
        return self._state

    async def close(self) -> None:
        await self._close_executor()

    def get_metadata(self) -> EnvironmentMetadata:
        described = f"Runs Python code with state kept between steps; executor: {self._executor_name}"
        return EnvironmentMetadata(name="coding_env", description=described, version="1.0.0")

    def _limit(self, timeout_s: float | None) -> float:
        """How long code may run: never longer than the policy allows, and within the caller's deadline."""
        if timeout_s is None:
            return self._policy.timeout_s
        return min(self._policy.timeout_s, timeout_s - min(RESERVE_S, timeout_s / 2))

    async def _ready_executor(self) -> AwaitedExecutor:
        """The episode's executor, idle. Raises `EnvironmentFailed` when its state is gone."""
        executor = self._executor or await self._open_executor()
        if self._unsettled and executor.alive:
            # The last step was cancelled and its code interrupted. It may be ending still, or refuse to.
            await executor.run("", timeout_s=self._policy.grace_s)
            self._unsettled = False
        if not executor.alive:
            raise EnvironmentFailed("the episode is over, because its interpreter is gone: call reset")
        return executor

    async def _open_executor(self) -> AwaitedExecutor:
        try:
            self._executor = await open_executor(self._executor_name, self._policy)
        except (
            ConfigurationError,
            MissingExtra,
        ) as error:  # these do not travel: the caller gets the sentence
            raise EnvironmentFailed(str(error)) from error
        return self._executor

    async def _close_executor(self) -> None:
        executor, self._executor = self._executor, None
        self._unsettled = False
        if executor is not None:
            await executor.close()
