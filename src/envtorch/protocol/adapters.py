"""How the values of a class are validated and described: by pydantic, or by the class's own word."""

from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json

__all__ = ["Adapter", "adapter_of", "json_reader"]


class Adapter(Protocol):
    """The part of `TypeAdapter` that an action needs."""

    def validate_json(self, data: bytes, /) -> Any: ...
    def validate_python(self, object: Any, /) -> Any: ...
    def json_schema(self) -> dict[str, Any]: ...


class _OwnWord:
    """A model whose author overrode `model_validate`: it may give an object of another class."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def validate_json(self, data: bytes, /) -> Any:
        return self._model.model_validate(from_json(data))

    def validate_python(self, object: Any, /) -> Any:
        return self._model.model_validate(object)

    def json_schema(self) -> dict[str, Any]:
        return self._model.model_json_schema()


def adapter_of(cls: Any) -> Adapter:
    """The adapter of a class."""
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        own = getattr(cls.model_validate, "__func__", None)
        if own is not getattr(BaseModel.model_validate, "__func__", None):
            return _OwnWord(cls)
    adapter: Adapter = TypeAdapter(cls)
    return adapter


def json_reader(adapter: Adapter) -> Callable[[bytes], Any]:
    """An adapter's way from JSON to a value, without the ways around it that nobody takes."""
    if isinstance(adapter, TypeAdapter):
        reader: Callable[[bytes], Any] = adapter.validator.validate_json
        return reader
    return adapter.validate_json
