"""Language models, as rubrics and harnesses ask them: one prompt, or a conversation with tools.

Needs no package until a client is made; `pip install envtorch[openai]` or `envtorch[anthropic]` then
bring the one that talks to the service.
"""

from envtorch.llm.anthropic import AnthropicClient
from envtorch.llm.factory import create_llm_client
from envtorch.llm.llm_client import LLMClient, LLMResponse, ToolCall
from envtorch.llm.openai import OpenAIClient

__all__ = [
    "AnthropicClient",
    "LLMClient",
    "LLMResponse",
    "OpenAIClient",
    "ToolCall",
    "create_llm_client",
]
