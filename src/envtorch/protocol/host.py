"""An environment behind its codec: requests in, encoded results out.

`EnvironmentHost` is the same object wherever the environment lives: on the event loop, on a thread, in
another process, or in the client's own process with no server at all. Its methods are flows: they
yield what the environment returned, which whoever drives them awaits if need be.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, Protocol

from envtorch.env import Environment, ToolProvider, ToolSteps
from envtorch.errors import EnvironmentFailed, EnvTorchError, OutOfResources, Unsupported
from envtorch.protocol import messages
from envtorch.protocol.binding import Binding, Colour, own_step_many
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.envelope import Encoded, encode_observation, write_plain
from envtorch.protocol.forking import fork_environment
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.mcp_result import tool_description, tool_result
from envtorch.protocol.wire import Reply, observation_reply, state_reply
from envtorch.together import Actions
from envtorch.tools import CallToolAction, CallToolObservation, ListToolsAction
from envtorch.types import EnvironmentMetadata

__all__ = ["EnvironmentHost", "Host", "Simulation", "blamed", "simulate"]

Simulation = messages.Reset | messages.Step | messages.State
Calls = Generator[Any, Any, Encoded]
Answers = Generator[Any, Any, bytes]
Replies = Generator[Any, Any, Reply]


class Host(Protocol):
    """What the doors of a server need of an environment, wherever it lives."""

    @property
    def name(self) -> str: ...
    @property
    def has_tools(self) -> bool: ...

    def reset(self, options: Mapping[str, Any], *, strict: bool, format: Format = JSON) -> Calls: ...
    def step(
        self,
        action: bytes | Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        strict: bool,
        format: Format = JSON,
    ) -> Calls: ...
    def reply(
        self, request: Simulation, *, strict: bool, format: Format = JSON, timeout_s: float | None = None
    ) -> Replies: ...
    def state(self, format: Format = JSON) -> Answers: ...
    def state_class(self) -> Generator[Any, Any, type]: ...
    def metadata(self) -> Generator[Any, Any, EnvironmentMetadata]: ...
    def list_tools(self) -> Answers: ...
    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Answers: ...
    def tool_result(self, name: str, arguments: Mapping[str, Any]) -> Answers: ...
    def tasks(self, method: str, *args: Any) -> Generator[Any, Any, Any]: ...
    def close(self) -> Generator[Any, Any, None]: ...


class EnvironmentHost:
    """Runs one environment for whoever holds its session."""

    def __init__(self, environment: Environment[Any, Any, Any], codec: Codec[Any, Any, Any]) -> None:
        self._codec = codec
        self._binding = Binding.of(environment)
        self.environment = environment
        self.bare_step: Callable[[Any], Any] = self._binding.step.call
        """The environment's own `step`, to be called with an action that was decoded already."""
        self.step_many = own_step_many(type(environment))
        """How it steps together with others of its class, where its author wrote that."""

    @property
    def name(self) -> str:
        """The environment's class, by name."""
        return type(self.environment).__name__

    @property
    def colour(self) -> Colour:
        return self._binding.colour

    def reset(self, options: Mapping[str, Any], *, strict: bool, format: Format = JSON) -> Calls:
        """Begin an episode."""
        accepted = self._binding.reset.accepted(options, strict=strict)
        with environment_at_work("reset"):
            observation = yield self._binding.reset.call(**accepted)
        return encode_observation(observation, format)

    def step(
        self,
        action: bytes | Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        strict: bool,
        format: Format = JSON,
    ) -> Calls:
        """Take one action, given as bytes or already decoded.

        A step that takes `timeout_s` is told the caller's, and can end in good order before it; for one that
        does not, the deadline is kept all the same.
        """
        decoded = self._codec.decode_action(action, format)
        if "timeout_s" in options and not self._binding.step.takes("timeout_s"):
            options = {name: value for name, value in options.items() if name != "timeout_s"}
        accepted = self._binding.step.accepted(options, strict=strict)
        with environment_at_work("step"):
            observation = yield self._binding.step.call(decoded, **accepted)
        return encode_observation(observation, format)

    def step_at_once(self, action: bytes, format: Format = JSON) -> Reply | None:
        """The reply to `step`, of an environment that does not wait; None, and no step, of one that does."""
        decoded = self._codec.decode_action(action, format)
        try:
            observation = self._binding.step.call(decoded)
        except (Exception, SystemExit) as error:
            raise blamed("step", error) from error
        if type(observation) is CoroutineType:
            observation.close()
            return None
        return self._observed(observation, format)

    def read_actions(self, actions: bytes, format: Format) -> list[Any] | None:
        """A list of actions, read at once; None when they have to be read one by one."""
        return self._codec.decode_actions(actions, format)

    def read_columns(self, columns: bytes, count: int, format: Format) -> Actions[Any] | None:
        """Actions that came as columns; None when they have to be read one by one."""
        return self._codec.decode_columns(columns, count, format)

    @property
    def observation_class(self) -> type:
        observation: type = self._codec.spec.observation
        return observation

    async def step_awaited(self, action: bytes, format: Format = JSON) -> Reply:
        """The reply to `step`, of an environment that is awaited."""
        decoded = self._codec.decode_action(action, format)
        try:
            observation = await self._binding.step.call(decoded)
        except (Exception, SystemExit) as error:
            raise blamed("step", error) from error
        return self._observed(observation, format)

    def _observed(self, observation: object, format: Format) -> Reply:
        plain = write_plain(observation) if format is JSON else None
        if plain is not None:
            return Reply("observation", plain)
        return observation_reply(encode_observation(observation, format))

    def reply(
        self, request: Simulation, *, strict: bool, format: Format = JSON, timeout_s: float | None = None
    ) -> Replies:
        """The reply to one of the three requests that every environment understands."""
        return simulate(self, request, strict=strict, format=format, timeout_s=timeout_s)

    def state(self, format: Format = JSON) -> Answers:
        """The state, as bytes."""
        with environment_at_work("state"):
            state = yield self._binding.state()
        return encode_value(state, format)

    def state_class(self) -> Generator[Any, Any, type]:
        """The class the state really has, which the author may not have declared."""
        with environment_at_work("state"):
            return type((yield self._binding.state()))

    def metadata(self) -> Generator[Any, Any, EnvironmentMetadata]:
        """What the environment tells of itself."""
        with environment_at_work("get_metadata"):
            metadata: EnvironmentMetadata = yield self.environment.get_metadata()
        return metadata

    def fork(self, count: int) -> "Generator[Any, Any, list[EnvironmentHost]]":
        """Exact copies of the environment as it is now, each behind a host of its own."""
        with environment_at_work("fork"):
            copies = yield from fork_environment(self.environment, count)
        return [EnvironmentHost(made, self._codec) for made in copies]

    def close(self) -> Generator[Any, Any, None]:
        """Let the environment go."""
        with environment_at_work("close"):
            yield self.environment.close()

    # Tools and tasks, for environments that have them.

    @property
    def has_tools(self) -> bool:
        return isinstance(self.environment, ToolProvider | ToolSteps) or self._codec.takes_tool_actions

    def list_tools(self) -> Answers:
        """The tools, as a JSON array in MCP's spelling."""
        environment = self.environment
        with environment_at_work("list_tools"):
            if isinstance(environment, ToolProvider):
                tools = yield environment.list_tools()
            elif isinstance(environment, ToolSteps):
                tools = yield environment.describe_tools()
            else:
                tools = (yield self._binding.step.call(ListToolsAction())).tools
        return encode_value([tool_description(tool) for tool in tools])

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Answers:
        """What a tool answered, as JSON. Raises `EnvironmentFailed` with the tool's own reason."""
        answer = yield from self.tool_answer(name, arguments)
        error = getattr(answer, "error", None)
        if error is not None:
            raise EnvironmentFailed(error.message, error_type=error.error_type)
        is_step = isinstance(answer, CallToolObservation) and isinstance(self.environment, ToolSteps)
        return encode_value(answer.result if is_step else answer)

    def tool_result(self, name: str, arguments: Mapping[str, Any]) -> Answers:
        """What a tool answered, as MCP's result."""
        return tool_result((yield from self.tool_answer(name, arguments)))

    def tool_answer(self, name: str, arguments: Mapping[str, Any]) -> Generator[Any, Any, Any]:
        """What a tool gave: a value, or the observation of the step that the call was."""
        environment = self.environment
        with environment_at_work(f"tool {name!r}"):
            if isinstance(environment, ToolProvider):
                return (yield environment.call_tool(name, arguments))
            action = CallToolAction(tool_name=name, arguments=dict(arguments))
            return (yield self._binding.step.call(action))

    def tasks(self, method: str, *args: Any) -> Generator[Any, Any, Any]:
        """The answer of one method of `TaskProvider`."""
        function = getattr(self.environment, method, None)
        if function is None:
            raise Unsupported(f"{method} is not supported for this environment")
        try:
            return (yield function(*args))
        except NotImplementedError:
            raise Unsupported(f"{method} is not supported for this environment") from None


def simulate(
    host: Host, request: Simulation, *, strict: bool, format: Format, timeout_s: float | None
) -> Replies:
    """The reply of a host to `reset`, `step` or `state`."""
    match request:
        case messages.Step():
            action = bytes(request.data)
            options = {} if timeout_s is None else {"timeout_s": timeout_s}
            return observation_reply((yield from host.step(action, options, strict=strict, format=format)))
        case messages.Reset():
            return observation_reply((yield from host.reset(request.data, strict=strict, format=format)))
        case messages.State():
            return state_reply((yield from host.state(format)), format)


@contextmanager
def environment_at_work(doing: str) -> Iterator[None]:
    """The boundary to an author's code: whatever it raises inside is reported as its failure."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, EnvTorchError):
            raise
        raise blamed(doing, error) from error


def blamed(doing: str, error: BaseException) -> EnvTorchError:
    """What an author's code raised, as the failure of the environment that it is."""
    if isinstance(error, EnvTorchError):
        return error
    if isinstance(error, MemoryError):
        return OutOfResources(f"{doing} ran out of memory")
    return EnvironmentFailed(str(error) or repr(error), exception=type(error).__name__)
