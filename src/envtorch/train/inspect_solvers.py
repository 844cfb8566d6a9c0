"""Environments in Inspect AI: as a solver, as tools of any agent, and as a scorer.

    from envtorch.train.inspect_solvers import in_session, play, session_reward, session_tools

    Task(dataset, solver=play(MyEnv, url), scorer=session_reward())
    Task(dataset, solver=in_session(MyEnv, url, generate()), scorer=session_reward())

A sample's `metadata["reset"]` has the options of its `reset`, its input is the instruction. What the
infrastructure loses, or the environment's own code breaks, is an error of the sample: it is never scored.
Our sandbox as a sandbox of Inspect is in `envtorch.train.inspect_sandbox`.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel

from envtorch.client import EnvClient
from envtorch.client.aio.client import AsyncEnvClient
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.extras import missing_extra
from envtorch.llm import ToolCall
from envtorch.protocol.observation_text import observation_text
from envtorch.rollout import ChatFormat, ChatMessage, Completion, Ending, OpenEpisode, default_format
from envtorch.rollout import Task as Episode
from envtorch.rollout.blame import ending_of
from envtorch.rollout.chat_formats import takes_tool_calls
from envtorch.rollout.finite_rewards import finite_total, reward_in
from envtorch.tools import CallToolAction
from envtorch.train.client_classes import GivenClient, client_class
from envtorch.types import StepResult
from envtorch.types import Tool as OfferedTool

try:
    from inspect_ai.model import ChatMessageSystem, ChatMessageTool, ChatMessageUser, ModelOutput
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import Tool, ToolDef, ToolError, ToolParams, ToolSource
    from inspect_ai.util import store
except ImportError as error:
    raise missing_extra("inspect", "the Inspect AI adapter needs the inspect-ai package") from error

__all__ = ["in_session", "play", "session_reward", "session_tools"]

Client = type[EnvClient[Any, Any, Any]]
REWARD, ENDING = "envtorch:reward", "envtorch:ending"
"""Where the sample's store has them."""


@solver
def play(
    client: GivenClient,
    base_url: str,
    *,
    format: ChatFormat | None = None,
    max_turns: int = 20,
    step_timeout_s: float | None = None,
    client_options: Mapping[str, Any] | None = None,
) -> Solver:
    """Play a sample's episode to its end: the model answers, the environment is stepped.

    `client` is a class, or `"module:Class"`; `format` says how a completion becomes an action, as in
    `envtorch.rollout`.
    """
    kind = client_class(client)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        begun = await OpenEpisode.begin(
            kind,
            base_url,
            _episode(state),
            format=format if format is not None else default_format(kind),
            max_turns=max_turns,
            step_timeout_s=step_timeout_s,
            client_options=client_options,
        )
        async with begun as episode:
            state.messages = [_message(one) for one in episode.messages]
            state.tools = [_offered(tool) for tool in episode.prompt.tools]
            while episode.over is None:
                state = await generate(state, tool_calls="none")
                state.messages += [_message(one) for one in await episode.act(_completion(state.output))]
        episode.raise_unless_scored()
        trajectory = episode.trajectory()
        state.store.set(REWARD, trajectory.reward)
        state.store.set(ENDING, trajectory.cause)
        state.completed = True
        return state

    return solve


@solver
def in_session(
    client: GivenClient,
    base_url: str,
    then: Solver,
    *,
    step_timeout_s: float | None = None,
    client_options: Mapping[str, Any] | None = None,
) -> Solver:
    """Open a session for a sample, give its tools to the solver `then`, and close it.

    The tools are those of a tool environment; any other environment has one tool, `step`, with the fields of
    its action. An agent with a list of tools of its own is given `session_tools()` in that list.
    """
    kind = client_class(client)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = _episode(state)
        session = _ToolSession(
            kind.aio(base_url, **{"wait_s": 60.0, **(client_options or {})}), kind, step_timeout_s
        )
        try:
            first = await session.begin(episode.options)
            if first:
                state.user_prompt.text = f"{state.user_prompt.text}\n\n{first}"
            state.tools = [*state.tools, *await session.tools()]
            token = _current.set(session)
            try:
                state = await then(state, generate)
            finally:
                _current.reset(token)
        finally:
            await session.client.close()
        if session.failure is not None:
            raise session.failure
        state.store.set(REWARD, session.reward)
        state.store.set(ENDING, str(Ending.DONE if session.is_over else Ending.MAX_TURNS))
        return state

    return solve


def session_tools() -> ToolSource:
    """The tools of the sample's session, for an agent that runs inside `in_session`."""
    return _SessionTools()


@scorer(metrics=[mean(), stderr()])
def session_reward() -> Scorer:
    """The sum of the rewards of the sample's episode. `Score.explanation` is how it ended."""

    async def score(state: TaskState, target: Target) -> Score:
        reward = store().get(REWARD)
        if reward is None:
            raise ConfigurationError(
                "this sample has no reward: solve it with envtorch's `play` or `in_session`"
            )
        return Score(value=float(reward), answer=state.output.completion, explanation=store().get(ENDING))

    return score


class _ToolSession:
    """A session whose steps are calls of tools."""

    def __init__(self, client: AsyncEnvClient[Any, Any, Any], kind: Client, timeout_s: float | None) -> None:
        self.client = client
        self.reward = 0.0
        self.is_over = False
        self.failure: EnvTorchError | None = None
        """Why the sample is not scored."""
        self._kind = kind
        self._timeout_s = timeout_s

    async def begin(self, options: Mapping[str, Any]) -> str:
        """The first observation, as text."""
        return observation_text((await self.client.reset(**options)).observation)

    async def tools(self) -> list[Tool]:
        """The tools, as Inspect has them."""
        if takes_tool_calls(self._kind):
            return [self._tool_call(tool) for tool in await self.client.list_tools()]
        return [self._step()]

    def _tool_call(self, tool: OfferedTool) -> Tool:
        async def execute(**arguments: Any) -> str:
            return await self._act(CallToolAction(tool_name=tool.name, arguments=arguments))

        return _defined(execute, tool)

    def _step(self) -> Tool:
        action = self._kind.spec().action

        async def execute(**fields: Any) -> str:
            return await self._act(action(**fields))

        schema = action.model_json_schema() if issubclass(action, BaseModel) else {"properties": {}}
        schema.get("properties", {}).pop("metadata", None)
        told = action.__doc__ or "Take one action in the environment."
        return _defined(execute, OfferedTool(name="step", description=told, input_schema=schema))

    async def _act(self, action: Any) -> str:
        if self.is_over:
            raise ToolError("the episode is over")
        try:
            result: StepResult[Any] = await self.client.step(action, timeout_s=self._timeout_s)
            reward = finite_total([self.reward, reward_in(result) or 0.0])
        except EnvTorchError as error:
            if ending_of(error, {}, has_acted=True) is Ending.POLICY:
                raise ToolError(str(error)) from None
            self.failure, self.is_over = error, True
            raise
        self.reward = reward
        self.is_over = result.done
        text = observation_text(result.observation)
        return f"{text}\n\nThe episode is over.".strip() if result.done else text


class _SessionTools(ToolSource):
    async def tools(self) -> list[Tool]:
        session = _current.get()
        if session is None:
            raise ConfigurationError("session_tools() has tools inside `in_session` only")
        return await session.tools()


_current: ContextVar[_ToolSession | None] = ContextVar("envtorch_session", default=None)
"""The session of the sample that this task works on."""


def _episode(state: TaskState) -> Episode:
    options = (state.metadata or {}).get("reset", {})
    return Episode(dict(options), prompt=state.input_text, id=str(state.sample_id))


def _message(message: ChatMessage) -> Any:
    """A message of ours as Inspect's."""
    if message["role"] == "system":
        return ChatMessageSystem(content=message["content"])
    if message["role"] == "tool":
        return ChatMessageTool(content=message["content"], tool_call_id=message.get("tool_call_id"))
    return ChatMessageUser(content=message["content"])


def _completion(output: ModelOutput) -> Completion:
    calls = [ToolCall(one.id, one.function, dict(one.arguments)) for one in output.message.tool_calls or ()]
    return Completion(
        output.completion, tool_calls=calls, is_cut=output.stop_reason in {"max_tokens", "model_length"}
    )


def _offered(tool: OfferedTool) -> Tool:
    """A tool that the model may call, and that `play` runs."""

    async def execute(**arguments: Any) -> str:
        raise AssertionError("the solver steps the environment itself")

    return _defined(execute, tool)


def _defined(execute: Any, tool: OfferedTool) -> Tool:
    schema = {key: tool.input_schema[key] for key in ("properties", "required") if key in tool.input_schema}
    described = {name: {"description": name, **one} for name, one in schema.get("properties", {}).items()}
    parameters = ToolParams.model_validate({**schema, "properties": described})
    return ToolDef(
        execute, name=tool.name, description=tool.description or tool.name, parameters=parameters
    ).as_tool()
