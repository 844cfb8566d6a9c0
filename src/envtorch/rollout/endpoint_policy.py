"""A policy behind an OpenAI-compatible endpoint: vLLM, SGLang, or a hosted service."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from envtorch.errors import ConfigurationError, ConnectFailed
from envtorch.llm import ToolCall
from envtorch.llm.schemas import openai_tools
from envtorch.rollout.chat_templates import described
from envtorch.rollout.completions import Completion, Prompt

__all__ = ["OpenAIPolicy"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class OpenAIPolicy:
    """Asks a chat endpoint for each prompt, all at once; token prompts go to the completions endpoint.

        async with OpenAIPolicy("http://127.0.0.1:8080/v1", "my-model") as policy:
            async with Rollouts(CodingEnv, url, policy) as rollouts:
                ...

    A busy or failing endpoint (429, 5xx, no connection) is asked again, with growing pauses or as long as it
    says; then `ConnectFailed` is raised. Any other refusal is a `ConfigurationError` with its message.
    """

    calls = 256
    """The endpoint batches by itself, so no prompt waits for another."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        timeout_s: float = 300.0,
        attempts: int = 6,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        """`request` has further fields of each request, such as `top_p` or `stop`."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=self.calls)
        self._http = httpx.AsyncClient(
            base_url=base_url.rstrip("/"), headers=headers, timeout=timeout_s, limits=limits
        )
        self._attempts = attempts
        self._usual = {
            "model": model,
            "temperature": temperature,
            "max_tokens": max_tokens,
            **(request or {}),
        }

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return list(await asyncio.gather(*(self._complete(prompt) for prompt in prompts)))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _complete(self, prompt: Prompt) -> Completion:
        if prompt.ids is not None:
            asked = {"prompt": list(prompt.ids), "logprobs": 1, "return_token_ids": True}
            return _read_tokens(await self._ask("/completions", asked))
        asked = {"messages": list(prompt.messages)}
        if prompt.tools:
            asked["tools"] = openai_tools([described(tool) for tool in prompt.tools])
        return _read_chat(await self._ask("/chat/completions", asked))

    async def _ask(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The endpoint's first choice."""
        for attempt in range(self._attempts):
            pause_s = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1)  # noqa: S311
            try:
                answer = await self._http.post(path, json={**self._usual, **asked})
            except httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    choice: dict[str, Any] = answer.json()["choices"][0]
                    return choice
                problem = f"{answer.status_code}: {answer.text[:500]}"
                if answer.status_code != 429 and answer.status_code < 500:
                    raise ConfigurationError(f"the policy's endpoint refused a request: {problem}")
                pause_s = _wanted_pause(answer.headers.get("retry-after"), pause_s)
            if attempt + 1 < self._attempts:
                await asyncio.sleep(pause_s)
        raise ConnectFailed(f"the policy's endpoint failed {self._attempts} times: {problem}")


def _wanted_pause(header: str | None, usual_s: float) -> float:
    try:
        return min(max(float(header), 0.0), LONGEST_PAUSE_S) if header is not None else usual_s
    except ValueError:
        return usual_s  # a date: rare, and the usual pauses grow as well


def _read_chat(choice: Mapping[str, Any]) -> Completion:
    message = choice["message"]
    text = message.get("content") or ""
    calls: list[ToolCall] = []
    for told in message.get("tool_calls") or ():
        function = told["function"]
        arguments = _object_in(function.get("arguments") or "{}")
        if arguments is None:  # not JSON: what the policy said is kept, and is no action
            raw = f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'
            return Completion(f"{text}<tool_call>{raw}</tool_call>")
        calls.append(ToolCall(told["id"], function["name"], arguments))
    return Completion(text, tool_calls=calls)


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _read_tokens(choice: Mapping[str, Any]) -> Completion:
    ids = choice.get("token_ids")
    if ids is None:
        raise ConfigurationError(
            "the policy's endpoint does not return token ids (`return_token_ids`): leave `template` out"
        )
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    return Completion(choice.get("text") or "", ids, logprobs)
