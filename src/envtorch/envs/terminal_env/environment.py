"""The terminal environment itself."""

import copy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pydantic

from envtorch.env import Environment, Rubric, Transform
from envtorch.envs.terminal_env.episode_tasks import EpisodeTask, ServedTask, TaskFolder
from envtorch.envs.terminal_env.harbor import GradingPlan
from envtorch.envs.terminal_env.models import TerminalObservation, TerminalState
from envtorch.envs.terminal_env.tool_calls import ToolCalls
from envtorch.envs.tool_arguments import TERMINAL_TOOLS, describe_tools, explain_arguments
from envtorch.errors import ConfigurationError, EnvironmentFailed, Unsupported
from envtorch.sandbox import Policy, Workspace
from envtorch.tools import CallToolAction, ListToolsAction, ListToolsObservation, ToolError, ToolErrorType
from envtorch.types import EnvironmentMetadata, Tool

__all__ = ["DEFAULT_POLICY", "TerminalEnvironment"]

MEGABYTE = 1024 * 1024
DEFAULT_POLICY = Policy(
    root="host",
    memory_bytes=1024 * MEGABYTE,
    disk_bytes=1024 * MEGABYTE,
    processes=256,
    open_files=4096,
    timeout_s=60.0,
    output_bytes=32 * 1024,
)


class TerminalEnvironment(Environment[CallToolAction, TerminalObservation, TerminalState]):
    """A shell, files and programs, on a root file system that the agent may change, as tools.

    Whatever a command does is an observation: a status, a limit, the end of the shell. `submit` ends the
    episode. A `rubric` gives the reward of each step. A fork copies files and the shell's state; processes
    besides the shell make it fail, unless `drop_processes` says that copies shall do without them.
    `tasks` is a directory of tasks, and `grading` the plan of those that choose none, in place of `image`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    TOOLS_REQUIRE_RESET = True

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        directory: str | None = None,
        drop_processes: bool = False,
        tasks: str | Path | None = None,
        grading: GradingPlan | None = None,
        transform: Transform[TerminalObservation] | None = None,
        rubric: Rubric | None = None,
    ) -> None:
        super().__init__(transform=transform, rubric=rubric)
        self._policy = policy or DEFAULT_POLICY
        if self._policy.root is None:
            raise ConfigurationError(
                "the terminal environment needs a policy with a root: Policy(root='host')"
            )
        self._directory = directory
        self._drop_processes = drop_processes
        self._folder = TaskFolder(tasks, grading=grading)
        self._task: EpisodeTask | None = None
        self._tools: ToolCalls | None = None
        self._state = TerminalState(episode_id=str(uuid4()))

    # Episodes.

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | ServedTask | None = None,
    ) -> TerminalObservation:
        """A fresh session on the root, or on the environment of a task, by its name or as the task routes
        tell it. There is nothing random in it, so `seed` changes nothing."""
        self._end()
        self._task = None
        name = task if isinstance(task, str) else "" if task is None else task["id"]
        self._state = TerminalState(episode_id=episode_id or str(uuid4()), task=name)
        self._reset_rubric()
        if task is not None:
            self._task = self._begin(task)
        self._tools = self._new_tools()
        directory = self._state.directory = self._tools.workspace.start_directory
        told = f"A shell is ready in {directory}." if self._task is None else self._task.instruction
        return self._apply_transform(TerminalObservation(tool_name="reset", result=told, directory=directory))

    def step(self, action: Any, timeout_s: float | None = None) -> Any:
        """Call a tool; the observation says how it went."""
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=self.describe_tools())
        self._state.step_count += 1
        observation = self._call(action, timeout_s)
        if observation.directory:
            self._state.directory = observation.directory
        if observation.exit_code is not None:
            self._state.last_exit_code = observation.exit_code
        if self.rubric is not None and observation.reward is None:
            observation.reward = self._apply_rubric(action, observation)
        return self._apply_transform(observation)

    def _call(self, action: CallToolAction, timeout_s: float | None) -> TerminalObservation:
        name = action.tool_name
        kind = TERMINAL_TOOLS.get(name)
        if kind is None:
            known = ", ".join(TERMINAL_TOOLS)
            return _failed(
                name, ToolErrorType.TOOL_NOT_FOUND, f"there is no tool {name!r}; there are: {known}"
            )
        try:
            arguments = kind.model_validate(action.arguments)
        except pydantic.ValidationError as error:
            return _failed(name, ToolErrorType.INVALID_ARGS, explain_arguments(error))
        if name == "submit":
            return self._submit()
        return self._ready_tools().call(name, arguments.model_dump(), timeout_s)

    def _submit(self) -> TerminalObservation:
        tools = self._tools or self._ready_tools()  # a session that has ended is graded by its files
        self._state.submitted = True
        observation = TerminalObservation(tool_name="submit", result="The work was submitted.", done=True)
        try:
            if self._task is not None:
                grade = self._task.grade(tools.workspace)
                observation.reward = self._state.reward = grade.reward
                observation.metadata = {"grade": grade.told()}
        finally:
            self._end()
        return observation

    def describe_tools(self) -> list[Tool]:
        """The tools there are."""
        return describe_tools(TERMINAL_TOOLS)

    def fork(self) -> "TerminalEnvironment":
        """A copy between two steps: the files, the shell's state, the counters, the rubric."""
        twin = self._bare_twin()
        twin._state = self._state.model_copy(deep=True)
        if self._tools is not None:
            workspace = self._copied(self._tools.workspace)
            twin._tools = ToolCalls(workspace, workspace.policy)
            twin._task = self._task
        return twin

    def _copied(self, workspace: Workspace) -> Workspace:
        try:
            return workspace.fork(drop_processes=self._drop_processes)[0]
        except Unsupported as error:
            if "processes" not in error.details:
                raise
            named = ", ".join(error.details["processes"])
            raise Unsupported(
                f"a session with background processes cannot be copied exactly: {named}. End them with a "
                "command (`kill`), or serve an environment whose copies do without them: "
                "TerminalEnvironment(drop_processes=True)",
                **error.details,
            ) from error

    def _bare_twin(self) -> "TerminalEnvironment":
        return TerminalEnvironment(
            policy=self._policy,
            directory=self._directory,
            drop_processes=self._drop_processes,
            tasks=self._folder.place,
            grading=self._folder.grading,
            transform=copy.deepcopy(self.transform),
            rubric=copy.deepcopy(self.rubric),
        )

    @property
    def state(self) -> TerminalState:
        return self._state

    def close(self) -> None:
        self._end()

    def get_metadata(self) -> EnvironmentMetadata:
        described = "A persistent shell, files and programs on a root file system of the agent's own"
        return EnvironmentMetadata(name="terminal_env", description=described, version="1.0.0")

    # Tasks, as a task provider tells them.

    def list_splits(self) -> list[str]:
        return [self._folder.SPLIT]

    def num_tasks(self, split: str) -> int:
        return len(self._folder.names(split))

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return [self._folder.described(name) for name in self._folder.names(split)]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return self._folder.described(self._folder.names(split)[index])

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        return [self._folder.described(name) for name in self._folder.names(split)[start:stop]]

    def _begin(self, task: str | ServedTask) -> EpisodeTask:
        try:
            return self._folder.begin(task, self._policy)
        except ConfigurationError as error:
            raise EnvironmentFailed(str(error)) from error

    def _new_tools(self) -> ToolCalls:
        try:
            if self._task is not None:
                workspace = self._task.open()
            else:
                workspace = Workspace(self._policy, directory=self._directory)
        except ConfigurationError as error:  # it does not travel: the caller gets the sentence
            raise EnvironmentFailed(str(error)) from error
        return ToolCalls(workspace, workspace.policy)

    def _ready_tools(self) -> ToolCalls:
        if self._tools is None and self._state.submitted:
            raise EnvironmentFailed("the episode is over, because the work was submitted: call reset")
        if self._tools is None:  # tools may be called without a reset, as over MCP
            self._tools = self._new_tools()
        if not self._tools.workspace.alive:
            raise EnvironmentFailed("the episode is over, because its session has ended: call reset")
        return self._tools

    def _end(self) -> None:
        tools, self._tools = self._tools, None
        if tools is not None:
            tools.workspace.close()


def _failed(name: str, kind: ToolErrorType, message: str) -> TerminalObservation:
    return TerminalObservation(tool_name=name, error=ToolError(error_type=kind, message=message))
