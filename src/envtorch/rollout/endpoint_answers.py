"""What an OpenAI-compatible endpoint answers: whole, or streamed in parts."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.llm import ToolCall
from envtorch.rollout.completions import Completion, TokenUsage

__all__ = [
    "BrokenStream",
    "StreamedAnswer",
    "read_chat",
    "read_completion",
    "tells_of_long_prompt",
    "used_tokens",
]


CHAT_ADVICE = "see that the URL is that of an OpenAI-compatible API, and that it serves a chat model"


LONG_PROMPT = (
    "context_length_exceeded",
    "maximum context length",
    "longer than the maximum model length",
    "longer than the model's context length",
    "exceed_context_size",
)
"""What OpenAI, vLLM (two sentences), SGLang and llama.cpp say of a prompt that the model has no room for."""


class BrokenStream(Exception):
    """The stream ended before its answer did, or said that the endpoint failed."""


def read_chat(answer: Mapping[str, Any]) -> Completion:
    """The first choice of an answer of `/chat/completions`. Raises `ConfigurationError` if it has none."""
    return _understood(_read_chat, answer)


def _read_chat(answer: Mapping[str, Any]) -> Completion:
    choice = _choice(answer)
    message = choice.get("message") or {}
    text = _text_of(message.get("content"))
    calls: list[ToolCall] = []
    for number, told in enumerate(message.get("tool_calls") or ()):
        function = told["function"]
        arguments = _json_in(function.get("arguments") or "{}")
        if arguments is None:  # not JSON: what the policy said is kept, and is no action
            raw = f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'
            text, calls = f"{text}<tool_call>{raw}</tool_call>", []
            break
        calls.append(ToolCall(told.get("id") or f"call-{number}", function["name"], arguments))
    ids = choice.get("token_ids") or ()
    told_logprobs = (choice.get("logprobs") or {}).get("content")
    logprobs = [token["logprob"] for token in told_logprobs] if told_logprobs and ids else None
    prompt_ids = answer.get("prompt_token_ids") if ids else None
    return Completion(
        text,
        ids,
        logprobs,
        tool_calls=calls,
        prompt_ids=prompt_ids,
        usage=_usage(answer.get("usage")),
        is_cut=choice.get("finish_reason") == "length",
    )


def read_completion(answer: Mapping[str, Any]) -> Completion:
    """The first choice of an answer of `/completions` to a prompt of token ids.

    Raises `ConfigurationError` if it has none, or no ids.
    """
    return _understood(_read_completion, answer)


def _read_completion(answer: Mapping[str, Any]) -> Completion:
    choice = _choice(answer)
    ids = choice.get("token_ids")
    if ids is None:
        raise ConfigurationError(
            "the policy's endpoint does not return token ids (`return_token_ids`): leave `template` out"
        )
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    return Completion(
        _whole_letters(choice.get("text") or ""),
        ids,
        logprobs,
        usage=_usage(answer.get("usage")),
        is_cut=choice.get("finish_reason") == "length",
    )


def tells_of_long_prompt(refusal: str) -> bool:
    """Whether an endpoint refused a request because the model's context has no room for it."""
    return any(told in refusal.lower() for told in LONG_PROMPT)


def used_tokens(answer: Mapping[str, Any], *, unless_told: float) -> float:
    """The tokens of the prompt and of the completion, as the endpoint counts them."""
    usage = _usage(answer.get("usage"))
    return unless_told if usage is None else float(usage.prompt + usage.said)


@dataclass(slots=True)
class StreamedAnswer:
    """An answer put together from the events of a stream. Feed it lines; then it is as if it came whole."""

    answer: dict[str, Any] = field(default_factory=dict)
    is_over: bool = False
    _calls: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """One line of the stream. Raises `BrokenStream` for an event that is an error, or cannot be read."""
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self.is_over = True
            return
        event = _object_in(data)
        if event is None or "error" in event:
            raise BrokenStream(data[:500])
        for kept in ("usage", "prompt_token_ids"):
            if event.get(kept) is not None:
                self.answer[kept] = event[kept]
        for part in event.get("choices") or ():
            if part.get("index", 0) == 0:
                self._add(part)

    def finish(self) -> dict[str, Any]:
        """The whole answer. Raises `BrokenStream` when it was cut off."""
        if not self.is_over:
            raise BrokenStream("the stream ended before its last event")
        if self._calls:
            calls = [self._calls[place] for place in sorted(self._calls)]
            self._choice.setdefault("message", {})["tool_calls"] = calls
        return self.answer

    @property
    def _choice(self) -> dict[str, Any]:
        choices: list[dict[str, Any]] = self.answer.setdefault("choices", [{}])
        return choices[0]

    def _add(self, part: Mapping[str, Any]) -> None:
        choice = self._choice
        delta = part.get("delta")
        if delta is not None:
            message = choice.setdefault("message", {"content": ""})
            message["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                self._add_call(call)
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]
        if part.get("text") is not None:
            choice["text"] = choice.get("text", "") + part["text"]
        if part.get("token_ids"):
            choice.setdefault("token_ids", []).extend(part["token_ids"])
        if part.get("prompt_token_ids") is not None:
            self.answer["prompt_token_ids"] = part["prompt_token_ids"]
        for name, told in (part.get("logprobs") or {}).items():
            if isinstance(told, list):
                choice.setdefault("logprobs", {}).setdefault(name, []).extend(told)

    def _add_call(self, part: Mapping[str, Any]) -> None:
        new = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(part.get("index", 0), new)
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise ConfigurationError(
            f"the policy's endpoint gave no choice: {json.dumps(answer)[:500]}", next_step=CHAT_ADVICE
        )
    choice: Mapping[str, Any] = choices[0]
    return choice


def _text_of(content: Any) -> str:
    """What was said: a text, or the texts among the parts of a message."""
    if content is None or isinstance(content, str):
        return _whole_letters(content or "")
    return _whole_letters("".join(part["text"] for part in content if part.get("type") == "text"))


def _whole_letters(text: str) -> str:
    """The text, with a replacement character where half a surrogate pair is: no request could carry it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _understood(read: Callable[[Mapping[str, Any]], Completion], answer: Mapping[str, Any]) -> Completion:
    """What an answer says. Raises `ConfigurationError` for one that has another form than OpenAI's."""
    try:
        return read(answer)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"the policy's endpoint gave an answer of another form than OpenAI's ({problem}): "
            f"{json.dumps(answer)[:500]}",
            next_step=CHAT_ADVICE,
        ) from error


def _usage(told: Any) -> TokenUsage | None:
    if not isinstance(told, Mapping):
        return None
    counts = [told.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
    return TokenUsage(*counts) if all(isinstance(count, int) for count in counts) else None


def _json_in(told: Any) -> Any:
    """The value in a text of JSON, or a value that is none; None for a text that cannot be read."""
    try:
        return json.loads(told) if isinstance(told, str) else told
    except (ValueError, RecursionError):
        return None


def _object_in(text: str | dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(text, dict):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
