"""An environment behind its codec: calls in, encoded results out.

`EnvironmentHost` is the same object wherever the environment lives: on the event loop, on a thread, in
another process, or in the client's own process with no server at all. Its methods are flows: they yield what
the environment returned, which the driver of the flow awaits if need be.

A server calls an environment with `answer`, `begin` and `finish`, and nowhere else: these are where whatever
the author's code raises, KeyboardInterrupt and SystemExit included, becomes an error of ours.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from envtorch.batch_actions import Actions
from envtorch.env import Environment, TaskFinder, TaskProvider, ToolProvider, ToolSteps
from envtorch.errors import (
    EnvironmentFailed,
    EnvTorchError,
    InternalError,
    InvalidAction,
    NotAllowed,
    OutOfResources,
    ResetRequired,
    TimedOut,
    Unsupported,
)
from envtorch.protocol import messages
from envtorch.protocol.binding import Binding, Colour
from envtorch.protocol.calls import Call, Perform, read_arguments
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import Encoded, encode_observation, encode_value
from envtorch.protocol.flow import Flow, drive, settle
from envtorch.protocol.forking import fork_environment
from envtorch.protocol.formats import BY_NAME, JSON, READ_ERRORS, Format
from envtorch.protocol.mcp_result import tool_description, tool_result
from envtorch.protocol.wire import Reply, observation_reply, state_reply
from envtorch.tools import CallToolAction, CallToolObservation, ListToolsAction, ToolErrorType

__all__ = ["CallResult", "EnvironmentHost", "answer", "answer_many", "begin", "blamed", "finish"]

logger = logging.getLogger(__name__)

Simulation = messages.ResetMessage | messages.StepMessage | messages.StateMessage
Replies = Generator[Any, Any, Reply]


OF_ENVIRONMENTS = (
    EnvironmentFailed,
    InvalidAction,
    NotAllowed,
    OutOfResources,
    ResetRequired,
    TimedOut,
    Unsupported,
)
"""Errors of ours that an author's code may raise, and that reach the caller as they are. The others say
something about the server or the session, which an environment cannot know: `SessionLost`, raised by an
environment that has lost a session of its own somewhere else, is its failure."""


class CallResult(NamedTuple):
    """What came of a call: a result or an error."""

    result: Any
    error: EnvTorchError | None


class EnvironmentHost:
    """One environment, and how it is called."""

    def __init__(
        self,
        environment: Environment[Any, Any, Any],
        codec: Codec[Any, Any, Any],
        *,
        has_begun: bool = False,
    ) -> None:
        binding = Binding.of(environment)
        self.environment = environment
        self.codec = codec.with_tool_steps if isinstance(environment, ToolSteps) else codec
        self.has_begun = has_begun or not codec.spec.requires_reset
        """Whether the environment takes steps: it was reset, or needs no reset."""
        self._binding = binding
        self._step: Callable[..., Any] = getattr(environment, binding.step.attribute)
        self._reset: Callable[..., Any] = getattr(environment, binding.reset.attribute)

    @property
    def name(self) -> str:
        """The environment's class, by name."""
        return type(self.environment).__name__

    @property
    def colour(self) -> Colour:
        return self._binding.colour

    @property
    def step_many(self) -> Callable[[Sequence[Any], Actions[Any]], Any] | None:
        """How the environment steps together with others of its class, where its author wrote that."""
        return self._binding.step_many

    @property
    def has_tools(self) -> bool:
        """Whether the environment is a `ToolProvider`, has `ToolSteps`, or takes tool actions."""
        return (
            self.codec.takes_tool_actions
            or self._has("describe_tools")
            or (self._has("list_tools") and self._has("call_tool"))
        )

    def _has(self, method: str) -> bool:
        return getattr(self.environment, method, None) is not None

    def call(self, call: Call) -> Flow[Any]:
        """What the environment answers to a call."""
        if call.operation == "step":
            return self.step(call)
        flow = _OPERATIONS.get(call.operation)
        if flow is None:
            raise Unsupported(f"there is no operation {call.operation!r}")
        return flow(self, call)

    def step(self, call: Call) -> Flow[Encoded]:
        """Take one action.

        A step that takes `timeout_s` is given the caller's, and can end in good order before it; for one that
        does not, the deadline is kept all the same.
        """
        format = BY_NAME[call.format]
        action = self.codec.decode_action(call.data, format)
        if not self.has_begun:
            self.require_reset(action)
        keywords: Mapping[str, Any] = {}
        if call.arguments:
            keywords = read_arguments(call)
            if "timeout_s" in keywords and not self._binding.step.takes("timeout_s"):
                keywords = {name: value for name, value in keywords.items() if name != "timeout_s"}
            keywords = self._binding.step.accepted(keywords, strict=call.strict)
        try:
            observation = yield self._step(action, **keywords)
        except (Exception, SystemExit) as error:
            raise blamed("step", error) from error
        expected = self.codec.spec.observation
        return encode_observation(observation, format, expected=expected, strict=call.strict)

    def require_reset(self, action: Any) -> None:
        """Refuse an action before the first `reset`. Tools may be called without one, unless the environment
        says otherwise; over MCP always."""
        tools_may = not getattr(self.environment, "TOOLS_REQUIRE_RESET", False)
        may = isinstance(action, ListToolsAction) or (tools_may and isinstance(action, CallToolAction))
        if not self.has_begun and not may:
            raise ResetRequired("step was called before reset: call reset first, it begins an episode")

    def reset(self, call: Call) -> Flow[Encoded]:
        """Begin an episode."""
        format = BY_NAME[call.format]
        keywords = self._with_task(_keywords(call, format))
        accepted = self._binding.reset.accepted(keywords, strict=call.strict)
        try:
            observation = yield self._reset(**accepted)
        except (Exception, SystemExit) as error:
            raise blamed("reset", error) from error
        expected = self.codec.spec.reset_observation or self.codec.spec.observation
        encoded = encode_observation(
            observation, format, method="reset", expected=expected, strict=call.strict
        )
        self.has_begun = True
        return encoded

    def _with_task(self, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options of `reset`, with the task itself where an environment with tasks was given an id."""
        tasks = getattr(self.environment, "tasks", None) if "task" in keywords else None
        if not isinstance(tasks, TaskFinder):
            return keywords
        try:
            return {**keywords, "task": tasks.find_task(keywords["task"])}
        except InvalidAction:
            raise
        except Exception as error:  # a file that cannot be read, say: what it was raised as does not travel
            raise EnvironmentFailed(_words_of(error), exception=type(error).__name__) from error

    def state(self, call: Call) -> Flow[bytes]:
        """The state, as bytes."""
        return encode_value((yield from self._state()), BY_NAME[call.format])

    def _state(self) -> Flow[Any]:
        """The state; some authors forget the `@property`, and are understood."""
        try:
            state = self.environment.state
            return (yield state() if callable(state) and hasattr(state, "__func__") else state)
        except (Exception, SystemExit) as error:
            raise blamed("state", error) from error

    def state_schema(self, call: Call) -> Flow[bytes]:
        """The JSON schema of the state's own class, which the author may not have declared."""
        actual, declared = type((yield from self._state())), self.codec.spec.state
        chosen = actual if issubclass(actual, declared) else declared
        return encode_value(self.codec.schemas(state=chosen)["state"])

    def metadata(self, call: Call) -> Flow[bytes]:
        """What the environment says about itself, as JSON."""
        try:
            described = yield self.environment.get_metadata()
        except (Exception, SystemExit) as error:
            raise blamed("get_metadata", error) from error
        return encode_value(described)

    def fork(self, count: int) -> "Flow[list[EnvironmentHost]]":
        """Exact copies of the environment as it is now, each behind a host of its own."""
        try:
            copies = yield from fork_environment(self.environment, count)
        except (Exception, SystemExit) as error:
            raise blamed("fork", error) from error
        return [EnvironmentHost(made, self.codec, has_begun=self.has_begun) for made in copies]

    def _fork(self, call: Call) -> "Flow[list[EnvironmentHost]]":
        return self.fork(read_arguments(call)[0])

    def close(self) -> Flow[bytes]:
        """Let the environment go."""
        try:
            yield self.environment.close()
        except (Exception, SystemExit) as error:
            raise blamed("close", error) from error
        return b""

    def _perform(self, call: Call) -> Flow[Any]:
        assert isinstance(call, Perform)
        return (yield call.function(self.environment))

    def reply(
        self, request: Simulation, *, strict: bool, format: Format = JSON, timeout_s: float | None = None
    ) -> Replies:
        """The reply to `reset`, `step` or `state`, for an environment in the client's own process."""
        match request:
            case messages.StepMessage():
                keywords = {} if timeout_s is None else {"timeout_s": timeout_s}
                call = Call.step(bytes(request.data), format, strict=strict, keywords=keywords)
                return observation_reply((yield from self.step(call)))
            case messages.ResetMessage():
                call = Call("reset", format.write(request.data), format.name, strict)
                return observation_reply((yield from self.reset(call)))
            case messages.StateMessage():
                return state_reply((yield from self.state(Call("state", format=format.name))), format)

    # Tools and tasks, for environments that have them.

    def list_tools(self, call: Call | None = None) -> Flow[bytes]:
        """The tools, as a JSON array in MCP's spelling."""
        environment = self.environment
        try:
            if isinstance(environment, ToolProvider):
                tools = yield environment.list_tools()
            elif isinstance(environment, ToolSteps):
                tools = yield environment.describe_tools()
            else:
                tools = (yield self._step(ListToolsAction())).tools
            described = [tool_description(tool) for tool in tools]
        except (Exception, SystemExit) as error:
            raise blamed("list_tools", error) from error
        return encode_value(described)

    def call_tool(self, call: Call) -> Flow[bytes]:
        """A tool's answer, as JSON. Raises `InvalidAction` for arguments that the tool does not take, and
        `EnvironmentFailed` with the tool's own reason."""
        answer = yield from self._tool_answer(*read_arguments(call))
        error = getattr(answer, "error", None)
        if error is not None:
            raise _tool_failure(error)
        is_step = isinstance(answer, CallToolObservation) and isinstance(self.environment, ToolSteps)
        return encode_value(answer.result if is_step else answer)

    def tool_result(self, call: Call) -> Flow[bytes]:
        """A tool's answer, as MCP's result."""
        answer = yield from self._tool_answer(*read_arguments(call))
        try:
            return tool_result(answer)
        except Exception as error:  # what a tool returned may be of any kind
            raise blamed("tool", error) from error

    def _tool_answer(self, name: str, arguments: Mapping[str, Any]) -> Flow[Any]:
        """What a tool returned: a value, or the observation of the step that the call was."""
        environment = self.environment
        try:
            if isinstance(environment, ToolProvider):
                return (yield environment.call_tool(name, arguments))
            return (yield self._step(CallToolAction(tool_name=name, arguments=dict(arguments))))
        except (Exception, SystemExit) as error:
            raise blamed(f"tool {name!r}", error) from error

    def tasks(self, call: Call) -> Flow[bytes]:
        """The answer of one method of `TaskProvider`, or of the web page's methods, as JSON."""
        method, *arguments = read_arguments(call)
        function = getattr(self.environment, method, None)
        tasks = getattr(self.environment, "tasks", None)
        if function is None and isinstance(tasks, TaskProvider):
            function = getattr(tasks, method, None)
        try:
            if function is None:
                raise NotImplementedError
            found = yield function(*arguments)
            is_several = not isinstance(found, str | bytes | Mapping) and hasattr(found, "__iter__")
            found = list(found) if is_several else found
        except NotImplementedError:
            raise Unsupported(f"{method} is not supported for this environment") from None
        except (Exception, SystemExit) as error:
            raise blamed(method, error) from error
        return encode_value(found)


_OPERATIONS: dict[str, Callable[[EnvironmentHost, Call], Flow[Any]]] = {
    "reset": EnvironmentHost.reset,
    "state": EnvironmentHost.state,
    "state_schema": EnvironmentHost.state_schema,
    "metadata": EnvironmentHost.metadata,
    "list_tools": EnvironmentHost.list_tools,
    "call_tool": EnvironmentHost.call_tool,
    "tool_result": EnvironmentHost.tool_result,
    "tasks": EnvironmentHost.tasks,
    "fork": EnvironmentHost._fork,
    "close": lambda host, call: host.close(),
    "perform": EnvironmentHost._perform,
}


def _keywords(call: Call, format: Format) -> Mapping[str, Any]:
    if not call.data:
        return {}
    try:
        keywords = format.read(call.data)
    except READ_ERRORS as error:
        raise InvalidAction(f"Invalid message: {error}") from None
    if not isinstance(keywords, dict):
        raise InvalidAction(f"{call.operation} takes keywords by name, not {type(keywords).__name__}")
    return keywords


def _tool_failure(error: Any) -> EnvTorchError:
    if error.error_type in (ToolErrorType.INVALID_ARGS, ToolErrorType.TOOL_NOT_FOUND):
        return InvalidAction(error.message, error_type=error.error_type)
    return EnvironmentFailed(error.message, error_type=error.error_type)


# The boundary to the author's code, on a server.


def answer(host: EnvironmentHost, call: Call, settled: Callable[[Any], Any]) -> CallResult:
    """Call an environment that has a thread or a process of its own.

    `settled` gives the value itself, or what an awaitable comes to.
    """
    try:
        return CallResult(drive(host.call(call), settled), None)
    except BaseException as error:
        return CallResult(None, failure_of(call.operation, error))


def begin(host: EnvironmentHost, call: Call) -> "CallResult | tuple[Flow[Any], Awaitable[Any]]":
    """Call an environment on the event loop: to the end, or to where it has to be awaited (`finish`)."""
    try:
        flow = host.call(call)
        wanted = next(flow)
        while not isinstance(wanted, Awaitable):
            wanted = flow.send(wanted)
        return flow, wanted
    except StopIteration as stop:
        return CallResult(stop.value, None)
    except BaseException as error:
        return CallResult(None, failure_of(call.operation, error))


async def finish(call: Call, flow: Flow[Any], wanted: Any) -> CallResult:
    """What came of a call that has to be awaited, as it has yielded `wanted`."""
    try:
        while True:
            try:
                got = await settle(wanted)
            except BaseException as error:
                wanted = flow.throw(error)
            else:
                wanted = flow.send(got)
    except StopIteration as stop:
        return CallResult(stop.value, None)
    except BaseException as error:
        return CallResult(None, failure_of(call.operation, error))


def answer_many(hosts: Sequence[EnvironmentHost], actions: Actions[Any]) -> CallResult:
    """Step environments of one class together, with their author's `step_many`."""
    step_many = hosts[0].step_many
    assert step_many is not None
    try:
        return CallResult(step_many([host.environment for host in hosts], actions), None)
    except BaseException as error:
        blame = blamed("step_many", error)
        blame.__cause__ = None if blame is error else error
        return CallResult(None, blame)


def failure_of(operation: str, error: BaseException) -> EnvTorchError:
    """What was raised while an environment was called, as one of our errors.

    What the author's code may raise has been blamed on it already, except for what is no `Exception`; any
    other is a fault of the server, and is logged under an id that the caller is told.
    """
    if isinstance(error, EnvTorchError):
        return error
    if not isinstance(error, Exception) or operation in ("step_many", "perform"):
        blame = blamed(operation, error)
        blame.__cause__ = error
        return blame
    error_id = secrets.token_hex(6)
    logger.error("a request failed [error %s]", error_id, exc_info=error)
    return InternalError("the server failed to answer", error_id=error_id)


def blamed(doing: str, error: BaseException) -> EnvTorchError:
    """What an author's code raised, as the failure of the environment that it is."""
    if isinstance(error, OF_ENVIRONMENTS):
        return error
    if isinstance(error, MemoryError):
        return OutOfResources(f"{doing} ran out of memory")
    return EnvironmentFailed(_words_of(error), exception=type(error).__name__)


def _words_of(error: BaseException) -> str:
    """What an exception says. Its `__str__` is the author's code too, and may raise anything."""
    try:
        return str(error) or repr(error)
    except BaseException:
        return f"{type(error).__name__}, which cannot be shown: its own __str__ raised"
