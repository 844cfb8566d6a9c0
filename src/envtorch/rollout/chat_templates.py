"""Conversations as token ids. What the policy said is never tokenised again."""

from collections.abc import Sequence
from typing import Any, Protocol

from envtorch.errors import ConfigurationError
from envtorch.llm.schemas import openai_tools
from envtorch.rollout.trajectories import ChatMessage
from envtorch.types import Tool

__all__ = ["ChatTemplate", "TransformersTemplate", "described"]


class ChatTemplate(Protocol):
    """How messages become the token ids that a policy completes."""

    def begin(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Sequence[int]:
        """The conversation up to where the policy's first turn begins."""

    def between(self, said: Sequence[int], messages: Sequence[ChatMessage]) -> Sequence[int]:
        """What follows the ids that the policy said, up to where its next turn begins."""

    def text(self, ids: Sequence[int]) -> str:
        """What the policy said, as text."""


class TransformersTemplate:
    """The chat template of a tokenizer of `transformers`.

    The tokens between two turns of the policy are found by rendering a short conversation with and without
    the new messages. Raises `ConfigurationError` when the template writes earlier messages differently once
    others follow: then no prompt continues the one before it.
    """

    _STAND_IN: Sequence[ChatMessage] = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    )

    def __init__(self, tokenizer: Any, *, end_of_turn: int | None = None, **options: Any) -> None:
        """`end_of_turn` is the token that ends a turn of the policy; the tokenizer's `eos_token` by default.
        `options` are variables of the template."""
        self._tokenizer = tokenizer
        self._options = options
        self._end = tokenizer.eos_token_id if end_of_turn is None else end_of_turn
        self._stand_in = self._render(self._STAND_IN)
        ends = [place for place, id in enumerate(self._stand_in) if id == self._end]
        self._after_turn = self._stand_in[ends[-1] + 1 :] if ends else []
        """What the template puts between the end of a turn and the next message, such as a new line."""

    def begin(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Sequence[int]:
        offered = openai_tools([described(tool) for tool in tools]) if tools else None
        return self._render(messages, tools=offered, add_generation_prompt=True)

    def between(self, said: Sequence[int], messages: Sequence[ChatMessage]) -> Sequence[int]:
        whole = self._render([*self._STAND_IN, *messages], add_generation_prompt=True)
        if whole[: len(self._stand_in)] != self._stand_in:
            raise ConfigurationError(
                "this chat template changes earlier messages when others follow; use one that only appends"
            )
        was_cut = self._end is not None and (not said or said[-1] != self._end)
        end = [self._end] if was_cut and self._end in self._stand_in else []
        return [*end, *self._after_turn, *whole[len(self._stand_in) :]]

    def text(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _render(self, messages: Sequence[ChatMessage], **options: Any) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            list(messages), tokenize=True, return_dict=False, **{**self._options, **options}
        )
        return ids


def described(tool: Tool) -> dict[str, Any]:
    """A tool in MCP's form."""
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
