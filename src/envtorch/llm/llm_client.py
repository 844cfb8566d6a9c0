"""What every client of a language model has in common."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

__all__ = ["LLMClient", "LLMResponse", "ToolCall"]


@dataclass
class ToolCall:
    """A tool the model wants called."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """What the model said, and the tools it wants called."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)

    def to_message_dict(self) -> dict[str, Any]:
        """The response as the assistant's message in OpenAI's form, to be sent back with the next one."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.args)},
                }
                for call in self.tool_calls
            ]
        return message


class LLMClient(ABC):
    """A language model behind an address. Subclass it for a service of your own."""

    def __init__(self, endpoint: str, port: int | None = None) -> None:
        parts = urlsplit(endpoint)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("an endpoint is a plain address: no credentials, no query, no fragment")
        self.endpoint = endpoint
        self.port = port

    @property
    def base_url(self) -> str:
        """Where the service answers."""
        endpoint = self.endpoint.rstrip("/")
        if self.port is None or urlsplit(endpoint).port is not None:
            return endpoint
        scheme, separator, rest = endpoint.partition("://")
        host, slash, path = (rest if separator else scheme).partition("/")
        address = f"{host}:{self.port}{slash}{path}"
        return f"{scheme}://{address}" if separator else address

    @abstractmethod
    async def complete(self, prompt: str, **options: Any) -> str:
        """The model's reply to one prompt."""

    async def complete_with_tools(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], **options: Any
    ) -> LLMResponse:
        """The model's reply to a conversation in OpenAI's form, with tools as MCP describes them."""
        raise NotImplementedError(f"{type(self).__name__} does not call tools")
