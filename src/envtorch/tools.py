"""Tools, as values: the actions that list and call them, and what comes back."""

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from envtorch.types import Action, Observation, Tool

__all__ = [
    "RESERVED_TOOL_NAMES",
    "CallToolAction",
    "CallToolObservation",
    "CallToolResult",
    "ListToolsAction",
    "ListToolsObservation",
    "Tool",
    "ToolError",
    "ToolErrorType",
]

RESERVED_TOOL_NAMES = frozenset({"reset", "step", "state", "close"})
"""What an agent must not reach as a tool: the simulation's own controls."""


class ToolErrorType(str, enum.Enum):  # noqa: UP042, its members print as OpenEnv's do
    """Why a tool gave no result."""

    EXECUTION_ERROR = "execution_error"
    INVALID_ARGS = "invalid_args"
    TRANSPORT_ERROR = "transport_error"
    TOOL_NOT_FOUND = "tool_not_found"
    TIMEOUT = "timeout"


class ToolError(BaseModel):
    """A tool call that failed before or inside the tool."""

    model_config = ConfigDict(extra="forbid")

    error_type: ToolErrorType
    message: str


@dataclass
class CallToolResult:
    """What a tool answered, as MCP tells it, and `data`: the value itself."""

    content: list[Any] = field(default_factory=list)
    structured_content: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    data: Any = None
    is_error: bool = False


class ListToolsAction(Action):
    """Ask which tools there are."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Call one tool."""

    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ListToolsObservation(Observation):
    """Which tools there are."""

    tools: list[Tool]


class CallToolObservation(Observation):
    """What a tool answered, or why it did not."""

    tool_name: str
    result: Any = None
    error: ToolError | None = None
