"""Language models, as rubrics and harnesses ask them: one prompt, or a conversation with tools.

Needs no package until a client is made; the extras `openai` and `anthropic`
bring the packages that talk to the services.
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
