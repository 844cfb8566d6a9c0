"""A harness that is talked to in turns: its settings, its events, and the contract of its adapter."""

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from envtorch.tools import Tool

__all__ = [
    "AgenticHarnessAdapter",
    "HarnessClientMessage",
    "HarnessConfig",
    "HarnessError",
    "HarnessEvent",
    "HarnessEventType",
    "HarnessNotRunningError",
    "HarnessProtocolError",
    "HarnessResponse",
    "HarnessStartupError",
    "HarnessTransport",
    "HarnessTurnTimeoutError",
    "events_to_metadata",
]


class HarnessError(Exception):
    """Something went wrong with a harness."""


class HarnessStartupError(HarnessError):
    """It did not start, or was not ready in time."""


class HarnessNotRunningError(HarnessError):
    """There is nobody to talk to."""


class HarnessTurnTimeoutError(HarnessError):
    """A turn took longer than it may."""


class HarnessTransport(str, enum.Enum):  # noqa: UP042, its members print as OpenEnv's do
    """How an adapter talks to its harness."""

    STDIO = "stdio"
    STREAMABLE_HTTP = "http"
    MCP = "mcp"


class HarnessConfig(BaseModel):
    """Which harness, and how it is started. Times are seconds."""

    name: str
    command: list[str] = Field(min_length=1)
    working_directory: str = "/workspace"
    env_vars: dict[str, str] = {}
    transport: HarnessTransport = HarnessTransport.STDIO
    mcp_config_path: str | None = None
    startup_timeout_s: float = 30.0
    session_timeout_s: float = 600.0
    """How long one turn may take."""
    model: str | None = None
    api_key_env_var: str | None = None


class HarnessEventType(str, enum.Enum):  # noqa: UP042
    """What a harness does during a turn."""

    LLM_REQUEST = "llm_request"
    LLM_RESPONSE = "llm_response"
    LLM_CHUNK = "llm_chunk"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    TEXT_OUTPUT = "text_output"
    ERROR = "error"
    TURN_COMPLETE = "turn_complete"


class HarnessEvent(BaseModel):
    """One thing that happened; what `data` holds depends on the type."""

    type: HarnessEventType
    timestamp: float = Field(default_factory=time.time)
    data: dict[str, Any] = {}

    @classmethod
    def fatal(cls, message: str) -> "HarnessEvent":
        """The error that ends an episode."""
        return cls(type=HarnessEventType.ERROR, data={"message": message, "recoverable": False})


class HarnessResponse(BaseModel):
    """A whole turn: what was answered, and all that happened on the way."""

    response: str
    events: list[HarnessEvent] = []
    done: bool = False


class HarnessClientMessage(BaseModel):
    """What a client of `/harness` says."""

    type: Literal["message"]
    content: str


class HarnessProtocolError(BaseModel):
    """The answer to a frame of `/harness` that says nothing: the conversation goes on."""

    type: Literal["protocol_error"] = "protocol_error"
    data: dict[str, Any]


def events_to_metadata(events: list[HarnessEvent]) -> list[dict[str, Any]]:
    """Events as plain data, for the metadata of an observation."""
    return [event.model_dump(mode="json") for event in events]


class AgenticHarnessAdapter(ABC):
    """Runs one harness, a program that keeps a conversation. One adapter, one program."""

    BUILTIN_TOOL_NAMES: ClassVar[frozenset[str]] = frozenset()
    """The tools that the harness has by itself; an environment's of the same name are renamed."""

    def __init__(self, config: HarnessConfig) -> None:
        self.config = config

    @abstractmethod
    async def start(self, working_directory: str) -> None:
        """Start the harness. Raises `HarnessStartupError`."""

    @abstractmethod
    async def stop(self) -> None:
        """End it and all it holds; without one, do nothing."""

    @abstractmethod
    async def inject_tools(self, tools: list[Tool], bridge_url: str | None = None) -> None:
        """Tell the harness, before it starts, of tools that are served over MCP at `bridge_url`."""

    @abstractmethod
    def send_message_streaming(self, message: str) -> AsyncIterator[HarnessEvent]:
        """One turn, as it happens. Its last event is a `TURN_COMPLETE` with the `response`."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Whether the harness runs."""

    async def send_message(self, message: str) -> HarnessResponse:
        """One turn, when it is over."""
        events = [event async for event in self.send_message_streaming(message)]
        if not events or events[-1].type is not HarnessEventType.TURN_COMPLETE:
            raise HarnessError("the harness ended its turn without a TURN_COMPLETE event")
        said = events[-1].data
        return HarnessResponse(
            response=str(said.get("response", "")), events=events, done=bool(said.get("done", False))
        )
