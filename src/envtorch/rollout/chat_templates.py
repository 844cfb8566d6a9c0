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

    _SAID = "b"
    _STAND_IN: Sequence[ChatMessage] = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": _SAID},
    )

    def __init__(self, tokenizer: Any, *, end_of_turn: int | None = None, **options: Any) -> None:
        """`end_of_turn` is the token that the template writes at the end of a turn of the policy. By default
        it is the tokenizer's `eos_token`, or the first special token that the template writes after such a
        turn. `options` are variables of the template."""
        self._tokenizer = tokenizer
        self._options = options
        self._stand_in = self._render(self._STAND_IN)
        end = self._place_of_end(end_of_turn)
        self._end = None if end is None else self._stand_in[end]
        self._after_turn = [] if end is None else self._stand_in[end + 1 :]
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
        following = [*self._after_turn, *whole[len(self._stand_in) :]]
        if self._end is None or (said and said[-1] == self._end):
            return following
        return [self._end, *following]

    def text(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _place_of_end(self, end_of_turn: int | None) -> int | None:
        """Where the policy's turn ends in the stand-in; None when the template writes nothing after it."""
        places = [
            place
            for place in range(len(self._stand_in))
            if self._SAID not in self.text(self._stand_in[place + 1 :])
        ]
        wanted = self._tokenizer.eos_token_id if end_of_turn is None else end_of_turn
        if found := [place for place in places if self._stand_in[place] == wanted]:
            return found[-1]
        text = self.text(self._stand_in)
        if end_of_turn is None and self._SAID in text:
            added = self._tokenizer.added_tokens_decoder
            special = {id for id, token in added.items() if token.special}
            if found := [place for place in places if self._stand_in[place] in special]:
                return found[0]
            if text.endswith(self._SAID):
                return None
        raise ConfigurationError(
            f"the end of a turn is not known: this chat template does not write the token {wanted} after a "
            f"turn of the assistant. It ends a conversation with the tokens {self._stand_in[-4:]}: give the "
            "one that ends a turn, TransformersTemplate(tokenizer, end_of_turn=...)"
        )

    def _render(self, messages: Sequence[ChatMessage], **options: Any) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            list(messages), tokenize=True, return_dict=False, **{**self._options, **options}
        )
        return ids


def described(tool: Tool) -> dict[str, Any]:
    """A tool in MCP's form."""
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
