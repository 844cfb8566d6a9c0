"""Any value as bytes, in either format; and where in it the part lies that cannot be."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaSerializer, to_json

from envtorch.errors import EnvironmentFailed, EnvTorchError
from envtorch.protocol.formats import JSON, Format, Unencodable

__all__ = ["complaint", "encode", "encode_value", "fallback"]


def encode_value(
    value: object, format: Format = JSON, *, blame: type[EnvTorchError] = EnvironmentFailed
) -> bytes:
    """Any value as bytes: models, dataclasses, arrays, tensors and plain containers."""
    return encode(value, format, blame=blame)


_serializers: dict[type, SchemaSerializer] = {}


def _serializer(cls: type) -> SchemaSerializer | None:
    """The serializer of a model or dataclass, found once per class; None for plain containers."""
    found = _serializers.get(cls)
    if found is None:
        if issubclass(cls, BaseModel):
            found = cls.__pydantic_serializer__
        elif dataclasses.is_dataclass(cls):
            found = TypeAdapter(cls).serializer
        else:
            return None
        _serializers[cls] = found
    return found


def encode(
    value: Any,
    format: Format,
    *,
    exclude: set[str] | None = None,
    blame: type[EnvTorchError] = EnvironmentFailed,
) -> bytes:
    serializer = _serializer(type(value))
    try:
        if format is not JSON:
            plain = value if serializer is None else serializer.to_python(value, warnings=False)
            if exclude:
                plain = {key: item for key, item in plain.items() if key not in exclude}
            return format.write(plain)
        if serializer is not None:
            return serializer.to_json(value, exclude=exclude, fallback=fallback, warnings=False)
        if exclude and isinstance(value, dict):
            value = {key: item for key, item in value.items() if key not in exclude}
        return to_json(value, fallback=fallback, inf_nan_mode="null")
    except (PydanticSerializationError, Unencodable, ValueError, OverflowError, RecursionError) as error:
        raise blame(complaint(value, error)) from error


def fallback(value: Any) -> Any:
    """Arrays, tensors and their scalars, of any library, all have `tolist`."""
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"Unable to serialize unknown type: {type(value)}")
    return tolist()


def complaint(value: object, error: Exception) -> str:
    where = ".".join(_path_to_fault(value, 0))
    return f"field {where!r} cannot be encoded: {error}" if where else f"cannot be encoded: {error}"


def _path_to_fault(value: object, depth: int) -> list[str]:
    """Where inside `value` the part lies that cannot be encoded; the error alone does not say."""
    if isinstance(value, Mapping):
        parts = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(str(index), item) for index, item in enumerate(value)]
    else:
        parts = list(getattr(value, "__dict__", {}).items())
    for name, part in parts if depth < 20 else []:
        try:
            to_json(part, fallback=fallback)
        except (PydanticSerializationError, ValueError, RecursionError):
            return [name, *_path_to_fault(part, depth + 1)]
    return []
