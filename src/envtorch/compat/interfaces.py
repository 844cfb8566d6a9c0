"""The small interfaces around OpenEnv's `Environment`."""

from typing import Any, Protocol

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

__all__ = ["Message", "ModelTokenizer"]


class Message(TypedDict):
    """One turn of a conversation, as chat templates take it."""

    role: str
    content: str


class ModelTokenizer(Protocol):
    """What a chat environment needs of a tokenizer; those of `transformers` have it."""

    def apply_chat_template(
        self,
        conversation: list[Message],
        tokenize: bool = True,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> Any: ...

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str: ...
