"""Models behind OpenAI's chat API: OpenAI itself, vLLM, SGLang and whoever else speaks it."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from envtorch.extras import missing_extra
from envtorch.llm.llm_client import LLMClient, LLMResponse, ToolCall
from envtorch.llm.schemas import openai_tools

__all__ = ["OpenAIClient"]


def AsyncOpenAI(**options: Any) -> Any:  # noqa: N802, it stands for the class of that name
    """OpenAI's own client, whose package is imported only when one is wanted."""
    try:
        import openai
    except ImportError as missing:
        raise missing_extra("openai", "this needs the openai package") from missing
    return openai.AsyncOpenAI(**options)


class OpenAIClient(LLMClient):
    """A client of the chat API. An address without a path gets `/v1`."""

    def __init__(
        self,
        endpoint: str,
        port: int | None = None,
        model: str = "",
        api_key: str | None = None,
        system_prompt: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        *,
        use_max_completion_tokens: bool = False,
    ) -> None:
        super().__init__(endpoint, port)
        self.model = model
        self.system_prompt = system_prompt
        self.temperature = temperature
        self.max_tokens = max_tokens
        self._limit = "max_completion_tokens" if use_max_completion_tokens else "max_tokens"
        base_url = self.base_url
        if not urlsplit(base_url).path:
            base_url += "/v1"
        self._client = AsyncOpenAI(base_url=base_url, api_key=api_key or "not-needed")

    async def complete(self, prompt: str, **options: Any) -> str:
        messages = [{"role": "user", "content": prompt}]
        if self.system_prompt:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        response = await self._client.chat.completions.create(
            model=self.model, messages=messages, **self._options(options)
        )
        return response.choices[0].message.content or ""

    async def complete_with_tools(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], **options: Any
    ) -> LLMResponse:
        offered = {"tools": openai_tools(tools)} if tools else {}
        response = await self._client.chat.completions.create(
            model=self.model, messages=list(messages), **offered, **self._options(options)
        )
        message = response.choices[0].message
        calls = [
            ToolCall(id=call.id, name=call.function.name, args=_arguments(call.function.arguments))
            for call in message.tool_calls or ()
        ]
        return LLMResponse(content=message.content or "", tool_calls=calls)

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        options = dict(options)
        limit = options.pop("max_tokens", options.pop("max_completion_tokens", self.max_tokens))
        return {"temperature": self.temperature, self._limit: limit, **options}


def _arguments(text: str) -> dict[str, Any]:
    """A model writes its arguments itself, and not always as JSON."""
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}
