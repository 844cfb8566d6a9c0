"""A client by the name of its service."""

from typing import Any

from envtorch.llm.anthropic import AnthropicClient
from envtorch.llm.llm_client import LLMClient
from envtorch.llm.openai import OpenAIClient

__all__ = ["create_llm_client"]

_SERVICES: dict[str, tuple[type[OpenAIClient] | type[AnthropicClient], str]] = {
    "openai": (OpenAIClient, "https://api.openai.com"),
    "anthropic": (AnthropicClient, "https://api.anthropic.com"),
}


def create_llm_client(
    provider: str,
    model: str,
    api_key: str | None = None,
    *,
    endpoint: str | None = None,
    port: int | None = None,
    **options: Any,
) -> LLMClient:
    """A client of `"openai"` or `"anthropic"`; an `endpoint` leads to a service of your own."""
    found = _SERVICES.get(provider.lower())
    if found is None:
        raise ValueError(f"unknown provider {provider!r}: there are {', '.join(sorted(_SERVICES))}")
    client, address = found
    return client(endpoint or address, port, model=model, api_key=api_key, **options)
