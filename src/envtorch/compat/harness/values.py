"""What a rollout consists of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from envtorch.llm import LLMResponse
from envtorch.types import Tool

__all__ = [
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "Message",
    "ModelStep",
    "ModelStepResult",
    "RolloutEvent",
    "ToolResult",
    "ToolTraceEntry",
    "TraceEntry",
    "VerifyResult",
]

Message = dict[str, Any]
"""One turn of a conversation, in OpenAI's form."""


@dataclass
class ToolResult:
    """What a tool gave, and whether the episode is over with it."""

    data: Any = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class VerifyResult:
    """What an environment makes of a whole transcript."""

    env_reward: float | None = None
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutEvent:
    """Something that happened on the way."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolTraceEntry:
    """One tool call and its result."""

    tool_name: str
    arguments: dict[str, Any]
    result: ToolResult


@dataclass
class ModelStepResult:
    """What a model said, and the tokens it was made of."""

    response: LLMResponse
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TraceEntry(TypedDict, total=False):
    """One call of a model, as it went to the engine and came back. Every key may be missing."""

    request: dict[str, Any]
    """What was sent: `messages`, `tools`."""
    response: dict[str, Any]
    """What came back: `choices`."""
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    completion_tokens: list[str]
    """From an engine that tells no ids."""
    per_token_logps: list[float]
    loss_mask: list[int]
    """1 for what is trained on; for prompt and completion together."""
    reward: float | None
    """What `verify` said; None when the rollout is not scored."""
    metadata: dict[str, Any]


ModelStep = Callable[[list[Message], list[Tool], dict[str, Any]], ModelStepResult]
"""Messages, tools and sampling options in; what the model said out."""


@dataclass
class HarnessRunLimits:
    """When to stop."""

    max_turns: int = 10
    max_tool_calls: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass
class HarnessRolloutResult:
    """One whole conversation between a model and an environment."""

    messages: list[Message] = field(default_factory=list)
    tool_trace: list[ToolTraceEntry] = field(default_factory=list)
    events: list[RolloutEvent] = field(default_factory=list)
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
