"""Language models, as a REPL asks them: a conversation in, text out. One attempt each."""

import asyncio
import contextlib
import copy
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from envtorch.errors import EnvTorchError

__all__ = [
    "HUGGING_FACE",
    "Completion",
    "FunctionModel",
    "LanguageModel",
    "ModelFailed",
    "OpenAICompatible",
    "Request",
    "ScriptedModel",
]

HUGGING_FACE = "https://router.huggingface.co/v1"
"""Hugging Face's inference providers, behind OpenAI's API."""

Message = Mapping[str, str]
_TEMPORARY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class ModelFailed(EnvTorchError):
    """A language model gave no answer. `retry` says whether asking again may help."""

    def __init__(self, message: str, *, retry: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry = retry
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a model."""

    messages: Sequence[Message]
    model: str | None = None
    """Which model, where the caller has a wish."""
    node: str = "0"
    """Which agent of the tree asks: "0" is the root, "0.1" its first child."""
    number: int = 0
    """The how manieth question of that agent."""

    @property
    def prompt(self) -> str:
        """The conversation as one text, for a model that takes nothing else."""
        if len(self.messages) == 1:
            return self.messages[0]["content"]
        return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in self.messages)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model said. Tokens are None where it did not count them."""

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class LanguageModel(Protocol):
    """Whatever answers a conversation."""

    async def complete(self, request: Request) -> Completion:
        """The answer. Raises `ModelFailed`."""
        ...

    async def close(self) -> None:
        """Let go of connections. It may be asked again afterwards."""


class FunctionModel:
    """Plain or async functions of text: `query(prompt)`, and `batch(prompts)` where there is one."""

    def __init__(
        self,
        query: Callable[[str], str | Awaitable[str]] | None,
        batch: Callable[[list[str]], list[str] | Awaitable[list[str]]] | None = None,
    ) -> None:
        self._query = query
        self._batch = batch

    @property
    def has_batch(self) -> bool:
        return self._batch is not None

    async def complete(self, request: Request) -> Completion:
        if self._query is None:
            return Completion((await self.complete_all([request.prompt]))[0])
        return Completion(str(await _called(self._query, request.prompt)))

    async def complete_all(self, prompts: list[str]) -> list[str]:
        """All answers in one call of `batch`."""
        assert self._batch is not None
        answers = [str(answer) for answer in await _called(self._batch, prompts)]
        if len(answers) != len(prompts):
            raise ModelFailed(f"llm_batch_fn gave {len(answers)} answers to {len(prompts)} prompts")
        return answers

    async def close(self) -> None:
        pass


async def _called(function: Callable[..., Any], argument: Any) -> Any:
    """What the function gives. A plain one runs on a thread, so that others may run meanwhile."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        answer = await asyncio.to_thread(function, argument)
        return await answer if inspect.isawaitable(answer) else answer
    except EnvTorchError:
        raise
    except Exception as error:  # the user's own function: whatever it does is the reason
        raise ModelFailed(f"{type(error).__name__}: {error}") from error


class ScriptedModel:
    """A model that follows a script: a function from the request to the answer. For tests and examples."""

    def __init__(self, script: Callable[[Request], str]) -> None:
        self._script = script

    async def complete(self, request: Request) -> Completion:
        return Completion(self._script(request))

    async def close(self) -> None:
        pass


class OpenAICompatible:
    """A model behind OpenAI's chat API at any address: hosted, vLLM, llama.cpp, Ollama, Hugging Face."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        max_tokens: int = 2048,
        temperature: float = 0.7,
        timeout_s: float = 120.0,
        stream: bool = False,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
        if stream:
            self._options |= {"stream": True, "stream_options": {"include_usage": True}}
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._http: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"<OpenAICompatible {self._model} at {self._url}>"

    async def complete(self, request: Request) -> Completion:
        body = {"model": request.model or self._model, "messages": list(request.messages), **self._options}
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._connected().stream("POST", self._url, json=body) as response,
            ):
                if response.status_code != 200:
                    raise _refusal(response, (await response.aread()).decode(errors="replace"))
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    return await _gather(response.aiter_lines())
                return _completion(json.loads(await response.aread()))
        except TimeoutError:
            raise ModelFailed(f"no answer within {self._timeout_s:g} s", retry=True) from None
        except httpx.HTTPError as error:
            raise ModelFailed(f"{type(error).__name__}: {error}".rstrip(": "), retry=True) from error
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ModelFailed(
                f"the answer could not be understood: {type(error).__name__}: {error}"
            ) from error

    def _connected(self) -> httpx.AsyncClient:
        if self._http is None:
            timeout = httpx.Timeout(self._timeout_s, connect=10.0)
            self._http = httpx.AsyncClient(headers=self._headers, timeout=timeout)
        return self._http

    def twin(self) -> "OpenAICompatible":
        """The same model over connections of its own."""
        twin = copy.copy(self)
        twin._http = None
        return twin

    async def close(self) -> None:
        """Close its connections; the next question opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()


def _completion(said: Any) -> Completion:
    if "error" in said and "choices" not in said:
        raise ModelFailed(f"the model's server answered: {str(said['error'])[:500]}")
    usage = said.get("usage") or {}
    text = said["choices"][0]["message"].get("content") or ""
    return Completion(str(text), usage.get("prompt_tokens"), usage.get("completion_tokens"))


async def _gather(lines: AsyncIterator[str]) -> Completion:
    """One answer out of a stream of events. A stream that breaks off is no answer."""
    parts: list[str] = []
    usage: dict[str, Any] = {}
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return Completion("".join(parts), usage.get("prompt_tokens"), usage.get("completion_tokens"))
        event = json.loads(data)
        if "error" in event:
            raise ModelFailed(f"the model's server answered: {str(event['error'])[:500]}", retry=True)
        usage = event.get("usage") or usage
        for choice in event.get("choices", ())[:1]:
            parts.append(choice.get("delta", {}).get("content") or "")
    raise ModelFailed("the answer broke off", retry=True)


def _refusal(response: httpx.Response, body: str) -> ModelFailed:
    after: float | None = None
    with contextlib.suppress(ValueError):  # absent, or a date: then our own back-off decides
        after = max(0.0, float(response.headers.get("retry-after", "")))
    said = " ".join(body.split())[:500]
    return ModelFailed(
        f"HTTP {response.status_code}: {said}".rstrip(": "),
        retry=response.status_code in _TEMPORARY,
        retry_after_s=after,
    )
