"""Sessions: an environment as a set of tools and a judgement at the end."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, runtime_checkable

from typing_extensions import TypeVar

from envtorch.compat.harness.training import TrainingTrace
from envtorch.compat.harness.values import Message, ToolResult, TraceEntry, VerifyResult
from envtorch.tools import RESERVED_TOOL_NAMES
from envtorch.types import StepResult, Tool

__all__ = [
    "LoopOwningSession",
    "ResourceSession",
    "ResourceSessionFactory",
    "StepEnvSessionAdapter",
    "TrainableSession",
]


class ResourceSession(ABC):
    """One episode, as a model sees it."""

    @abstractmethod
    def initial_messages(self) -> list[Message]:
        """What the model is told first."""

    @abstractmethod
    def list_tools(self) -> list[Tool]: ...

    @abstractmethod
    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult: ...

    @abstractmethod
    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """What the episode was worth."""

    @abstractmethod
    def close(self) -> None: ...


SessionT = TypeVar("SessionT", bound=ResourceSession, default=ResourceSession)


class ResourceSessionFactory(ABC, Generic[SessionT]):
    """Opens sessions, one per task."""

    @abstractmethod
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> SessionT: ...


@runtime_checkable
class LoopOwningSession(Protocol):
    """A session whose agent runs by itself: it is waited for, and asked what the agent's model calls were."""

    def wait_for_completion(self, timeout_s: float | None = ...) -> int: ...
    def fetch_proxy_trace(self) -> list[TraceEntry]: ...


@runtime_checkable
class TrainableSession(Protocol):
    """A session whose agent runs by itself, and that has kept the tokens of its model calls."""

    def wait_for_completion(self, timeout_s: float | None = ...) -> int: ...
    def fetch_training_trace(self) -> TrainingTrace: ...


class StepEnvSessionAdapter(ResourceSession):
    """A session on any client with `reset`, `step` and `state`: each tool call becomes one action."""

    def __init__(
        self,
        client: Any,
        task: Any,
        tool_specs: Sequence[Tool],
        action_builder: Callable[[str, dict[str, Any]], Any],
        initial_messages_builder: Callable[[StepResult[Any], Any], list[Message]],
        *,
        seed: int | None = None,
        episode_id: str | None = None,
        reset_kwargs: Mapping[str, Any] | None = None,
        tool_result_builder: Callable[[str, dict[str, Any], StepResult[Any], Any], ToolResult] | None = None,
        verify_builder: Callable[[list[Message], Any, Any, Any], VerifyResult] | None = None,
    ) -> None:
        reserved = sorted(RESERVED_TOOL_NAMES.intersection(tool.name for tool in tool_specs))
        if reserved:
            raise ValueError(f"{', '.join(reserved)}: reserved, and not to be used as names of tools")
        self._client = client
        self._task = task
        self._tools = list(tool_specs)
        self._action = action_builder
        self._tool_result = tool_result_builder or _tool_result
        self._verify = verify_builder
        named = {"seed": seed, "episode_id": episode_id}
        options = {**(reset_kwargs or {}), **{k: v for k, v in named.items() if v is not None}}
        try:
            self._last: StepResult[Any] = client.reset(**options)
            self._initial = initial_messages_builder(self._last, task)
        except BaseException:
            client.close()
            raise

    def initial_messages(self) -> list[Message]:
        return list(self._initial)

    def list_tools(self) -> list[Tool]:
        return list(self._tools)

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name not in {tool.name for tool in self._tools}:
            raise KeyError(name)
        self._last = self._client.step(self._action(name, arguments))
        return self._tool_result(name, arguments, self._last, self._client.state())

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        state = self._client.state()
        if self._verify is not None:
            return self._verify(transcript, final_state, self._last, state)
        metrics = {"step_count": getattr(state, "step_count", None)}
        reward = None if self._last.reward is None else float(self._last.reward)
        return VerifyResult(env_reward=reward, done=self._last.done, metrics=metrics)

    def close(self) -> None:
        self._client.close()


def _tool_result(name: str, arguments: dict[str, Any], result: StepResult[Any], state: Any) -> ToolResult:
    data = {"observation": _plain(result.observation), "reward": result.reward, "done": result.done}
    return ToolResult(data=data, done=result.done, metadata={"reward": result.reward, "state": _plain(state)})


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump() if dump is not None else value
