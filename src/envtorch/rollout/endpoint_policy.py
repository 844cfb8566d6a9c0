"""A policy behind an OpenAI-compatible endpoint: vLLM, SGLang, or a hosted service."""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import httpx

from envtorch.errors import ConfigurationError, EndpointFailed, PromptTooLong
from envtorch.llm.schemas import openai_tools
from envtorch.rollout.chat_templates import described
from envtorch.rollout.completions import Completion, Prompt
from envtorch.rollout.endpoint_answers import (
    BrokenStream,
    StreamedAnswer,
    read_chat,
    read_completion,
    tells_of_long_prompt,
    used_tokens,
)
from envtorch.rollout.endpoint_pace import EndpointPace
from envtorch.shown_urls import shown_url

__all__ = ["OpenAIPolicy"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
ENDPOINT_ADVICE = (
    "see that the model's endpoint is up, and that its URL is the API's, which often ends in /v1"
)


class OpenAIPolicy:
    """Asks a chat endpoint for each prompt, all at once; token prompts go to the completions endpoint.

        async with OpenAIPolicy("http://127.0.0.1:8080/v1", "my-model") as policy:
            async with Rollouts(CodingEnv, url, policy) as rollouts:
                ...

    A busy or failing endpoint (429, 5xx, no connection, a stream that is cut off) is asked again, with
    growing pauses; then `EndpointFailed` is raised. When it says how long to wait, every request waits so
    long. A completion that takes longer than `timeout_s` is not asked for again: `EndpointFailed` is raised
    at once. A prompt that the model's context has no room for ends its episode, with `PromptTooLong`. Any
    other refusal is a `ConfigurationError` with its message.
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
        stream: bool = False,
        requests_per_s: float | None = None,
        tokens_per_minute: float | None = None,
        token_ids: bool = False,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        """`request` has further fields of each request, such as `top_p` or `stop`.

        timeout_s: how long the endpoint may be silent. With `stream`, between two tokens; without, until the
            whole completion is there. Choose it so that a completion of `max_tokens` comes in time: those
            that do not are lost, and what is left would be biased towards short ones.
        stream: have completions streamed, for long ones through proxies that cut silent connections.
        requests_per_s: the most requests to begin in a second, for an endpoint that limits them.
        tokens_per_minute: the most tokens in a minute, prompts and completions, by what the endpoint says
            that requests used. Ten seconds' worth may be used at once. A pickled copy has limits of its own.
        token_ids: ask a chat endpoint for token ids and log-probabilities (vLLM gives them): then
            trajectories have tokens without a template of yours.
        """
        self._given: dict[str, Any] = {
            "api_key": api_key,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "timeout_s": timeout_s,
            "attempts": attempts,
            "stream": stream,
            "requests_per_s": requests_per_s,
            "tokens_per_minute": tokens_per_minute,
            "token_ids": token_ids,
            "request": dict(request or {}),
        }
        self._endpoint = (base_url, model)
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        limits = httpx.Limits(max_connections=self.calls)
        self._http = httpx.AsyncClient(
            base_url=base_url.rstrip("/"), headers=headers, timeout=timeout_s, limits=limits
        )
        self._attempts = attempts
        self._pace = EndpointPace(requests_per_s, tokens_per_minute, expected=max_tokens)
        self._gate = asyncio.Lock()
        """Held by the request that begins next."""
        self._chat = {"logprobs": True, "return_token_ids": True} if token_ids else {}
        self._usual = {
            "model": model,
            "temperature": temperature,
            "max_tokens": max_tokens,
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
            **(request or {}),
        }
        self._exchange = self._stream if stream else self._post

    @property
    def record_settings(self) -> dict[str, Any]:
        """What completions depend on: a record of rollouts belongs to it."""
        sampling = {name: self._given[name] for name in ("temperature", "max_tokens", "token_ids")}
        return {"model": self._endpoint[1], **sampling, **self._given["request"]}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it was made, its key included: a copy has connections of its own."""
        return (partial(type(self), **self._given), self._endpoint)

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return list(await asyncio.gather(*(self._complete(prompt) for prompt in prompts)))

    async def models(self) -> list[str]:
        """The names of the models that the endpoint serves. Raises `EndpointFailed` if it does not tell."""
        try:
            answer = await self._http.get("/models")
            answer.raise_for_status()
            return [str(model["id"]) for model in answer.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise EndpointFailed(
                shown_url(f"the endpoint {self._http.base_url} does not list its models: {problem}"),
                next_step=ENDPOINT_ADVICE,
            ) from None

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
        try:
            return await self._completed(prompt)
        except PromptTooLong as error:
            return Completion(refusal=error)  # the other prompts of the batch are completed

    async def _completed(self, prompt: Prompt) -> Completion:
        if prompt.ids is not None:
            asked = {"prompt": list(prompt.ids), "logprobs": 1, "return_token_ids": True}
            return read_completion(await self._ask("/completions", asked))
        asked = {"messages": list(prompt.messages), **self._chat}
        if prompt.tools:
            asked["tools"] = openai_tools([described(tool) for tool in prompt.tools])
        return read_chat(await self._ask("/chat/completions", asked))

    async def _ask(self, path: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """The endpoint's answer. Raises `PromptTooLong`."""
        for attempt in range(self._attempts):
            taken, used = await self._turn(), 0.0
            pause_s = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1)  # noqa: S311
            try:
                answered = await self._exchange(path, {**self._usual, **asked})
                used = used_tokens(answered, unless_told=taken)
                return answered
            except httpx.HTTPStatusError as error:
                answer = error.response
                problem = f"{answer.status_code}: {answer.text[:500]}"
                _refuse_long_prompt(answer.text)
                if answer.status_code != 429 and answer.status_code < 500:
                    raise ConfigurationError(
                        f"the policy's endpoint refused a request: {problem}", next_step=ENDPOINT_ADVICE
                    ) from None
                wanted_s = _wanted_pause(answer.headers.get("retry-after"))
                if wanted_s is not None:
                    pause_s = wanted_s
                    self._pace.pause(time.monotonic() + wanted_s)
            except (httpx.TransportError, BrokenStream) as error:
                if isinstance(error, httpx.ReadTimeout) and not self._given["stream"]:
                    raise self._too_late() from None
                problem = f"{type(error).__name__}: {error}"
                _refuse_long_prompt(problem)
            finally:
                self._pace.settle(taken, used)
            if attempt + 1 < self._attempts:
                await asyncio.sleep(pause_s)
        raise EndpointFailed(
            f"the policy's endpoint failed {self._attempts} times: {problem}", next_step=ENDPOINT_ADVICE
        )

    def _too_late(self) -> EndpointFailed:
        """For a completion that was not there in time. Were it sampled again, only a shorter one would be."""
        limit = f"{self._given['timeout_s']:g} s"
        return EndpointFailed(
            f"the policy's endpoint gave no completion in {limit}, and is not asked again",
            next_step="raise timeout_s, lower max_tokens, or have completions streamed with stream=True, for "
            "which timeout_s is the longest pause between two tokens",
        )

    async def _turn(self) -> float:
        """Wait until a request may begin; the tokens that it is expected to take."""
        async with self._gate:
            while (wait_s := self._pace.wait_s(time.monotonic())) > 0:  # noqa: ASYNC110, not a poll
                await asyncio.sleep(wait_s)
            return self._pace.begin(time.monotonic())

    async def _post(self, path: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = (await self._http.post(path, content=_body(request))).raise_for_status()
        try:
            whole = answer.json()
        except ValueError:
            whole = None
        if not isinstance(whole, dict):
            raise ConfigurationError(
                f"the policy's endpoint answers no JSON object: {answer.text[:500]}",
                next_step=ENDPOINT_ADVICE,
            )
        return whole

    async def _stream(self, path: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._http.stream("POST", path, content=_body(request)) as answer:
            if not answer.is_success:
                await answer.aread()
            answer.raise_for_status()
            streamed = StreamedAnswer()
            async for line in answer.aiter_lines():
                streamed.take(line)
            return streamed.finish()


def _body(request: Mapping[str, Any]) -> bytes:
    """JSON in ASCII, which can carry any text, such as half a surrogate pair in an observation."""
    return json.dumps(request, allow_nan=False).encode("ascii")


def _refuse_long_prompt(problem: str) -> None:
    if tells_of_long_prompt(problem):
        raise PromptTooLong(
            f"the conversation has no room in the model's context: {problem[:500]}",
            next_step="serve the model with a longer context, or lower max_tokens or max_turns",
        ) from None


def _wanted_pause(header: str | None) -> float | None:
    try:
        return min(max(float(header), 0.0), LONGEST_PAUSE_S) if header is not None else None
    except ValueError:
        return None  # a date: rare, and the usual pauses grow as well
