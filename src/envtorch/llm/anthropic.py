"""Models behind Anthropic's messages API."""

from collections.abc import Sequence
from typing import Any

from envtorch.extras import missing_extra
from envtorch.llm.llm_client import LLMClient, LLMResponse, ToolCall
from envtorch.llm.schemas import anthropic_messages, anthropic_tools

__all__ = ["AnthropicClient"]


class AnthropicClient(LLMClient):
    """A client of the messages API; conversations come in OpenAI's form and are translated."""

    def __init__(
        self,
        endpoint: str = "https://api.anthropic.com",
        port: int | None = None,
        model: str = "",
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
    ) -> None:
        super().__init__(endpoint, port)
        try:
            import anthropic
        except ImportError as missing:
            raise missing_extra("anthropic", "this needs the anthropic package") from missing
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens
        self._client: Any = anthropic.AsyncAnthropic(base_url=self.base_url, api_key=api_key)

    async def complete(self, prompt: str, **options: Any) -> str:
        messages = [{"role": "user", "content": prompt}]
        return (await self._ask(messages, self.system_prompt or "", {}, options)).content

    async def complete_with_tools(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], **options: Any
    ) -> LLMResponse:
        system, translated = anthropic_messages(messages)
        offered = {"tools": anthropic_tools(tools)} if tools else {}
        return await self._ask(translated, system or self.system_prompt or "", offered, options)

    async def _ask(
        self, messages: list[dict[str, Any]], system: str, offered: dict[str, Any], options: dict[str, Any]
    ) -> LLMResponse:
        request = {
            "model": self.model,
            "messages": messages,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **({"system": system} if system else {}),
            **offered,
            **options,
        }
        response = await self._client.messages.create(**request)
        text = "".join(block.text for block in response.content if block.type == "text")
        calls = [
            ToolCall(id=block.id, name=block.name, args=dict(block.input))
            for block in response.content
            if block.type == "tool_use"
        ]
        return LLMResponse(content=text, tool_calls=calls)
