"""Gymnasium's spaces for the classes that travel: of the schema of an action or an observation.

| field | space |
|---|---|
| `Literal`, an enum, `bool` | `Discrete`, by position |
| `int` with `ge` and `le` | `Discrete`, from the lower bound |
| another `int` or `float` | `Box` of shape `()` |
| `str` with `max_length` | `Text` of printable ASCII |
| a list or tuple of fixed length | `Box`, `MultiDiscrete` or `MultiBinary` |
| a class | `Dict` |
"""

import dataclasses
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

from envtorch.errors import ConfigurationError, InvalidAction
from envtorch.extras import missing_extra
from envtorch.protocol.observation_text import BESIDE_TEXT

try:
    import numpy
    from gymnasium import spaces
except ImportError as error:
    raise missing_extra("gymnasium", "spaces need the gymnasium package") from error

__all__ = ["ValueSpace"]

Schema = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """The space of one field, and the way between its values and the space's elements."""

    space: "spaces.Space[Any]"
    element: Callable[[Any], Any]
    value: Callable[[Any], Any]


class ValueSpace:
    """The space of a class: bare if the class has one field, a `Dict` of them if it has several.

    What an observation has for the trainer (`done`, `reward`, `metadata`) is not counted. `only` names the
    fields that matter; `given` has spaces for fields whose schema says too little, such as arrays. Raises
    `ConfigurationError` for a field without a space.
    """

    def __init__(
        self,
        cls: type[Any],
        *,
        only: Sequence[str] | None = None,
        given: Mapping[str, "spaces.Space[Any]"] | None = None,
    ) -> None:
        self._cls = cls
        annotations = _annotations(cls)
        wanted = list(annotations) if only is None else list(only)
        unknown = sorted({*wanted, *(given or {})} - set(annotations))
        if unknown or not wanted:
            has = ", ".join(annotations) or "no fields"
            asked = ", ".join(map(repr, unknown)) or "field to make a space of"
            raise ConfigurationError(f"{cls.__name__} has no {asked}; it has {has}")
        self._places: dict[str, _Place] = {}
        for name in wanted:
            if given is not None and name in given:
                self._places[name] = _given(given[name], annotations[name])
            else:
                self._places[name] = _of_annotation(f"{cls.__name__}.{name}", annotations[name])
        self._only = wanted[0] if len(wanted) == 1 else None
        self.space: spaces.Space[Any] = (
            self._places[self._only].space
            if self._only is not None
            else spaces.Dict({name: place.space for name, place in self._places.items()})
        )

    def element(self, value: Any) -> Any:
        """A value of the class as an element of the space."""
        if self._only is not None:
            return self._places[self._only].element(_field(value, self._only))
        return {name: place.element(_field(value, name)) for name, place in self._places.items()}

    def value(self, element: Any) -> Any:
        """An element of the space as a value of the class. Raises `InvalidAction` for what is no element."""
        elements = {self._only: element} if self._only is not None else element
        try:
            return self._cls(**{name: place.value(elements[name]) for name, place in self._places.items()})
        except (ValueError, TypeError, LookupError) as error:
            name = self._cls.__name__
            raise InvalidAction(f"{element!r} is no {name}: it is not in {self.space}") from error


def _field(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def _annotations(cls: type[Any]) -> dict[str, Any]:
    """The fields of a class, each with its type and constraints."""
    if issubclass(cls, BaseModel):
        fields = {name: field for name, field in cls.model_fields.items() if name not in BESIDE_TEXT}
        return {
            name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            for name, field in fields.items()
        }
    if dataclasses.is_dataclass(cls):
        return {field.name: field.type for field in dataclasses.fields(cls) if field.name not in BESIDE_TEXT}
    raise ConfigurationError(
        f"{cls.__name__} has no schema to make spaces of: "
        "use a client such as `class MyEnv(EnvClient[MyAction, MyObservation, MyState])`"
    )


def _of_annotation(where: str, annotation: Any) -> _Place:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        schema = adapter.json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError):
        raise _no_space(where, "its type has no schema") from None
    place = _of_schema(where, schema, schema.get("$defs", {}))
    return dataclasses.replace(
        place,
        element=lambda value: place.element(adapter.dump_python(value, mode="json")),
        value=lambda element: adapter.validate_python(place.value(element)),
    )


def _of_schema(where: str, schema: Schema, named: Mapping[str, Schema]) -> _Place:
    if "$ref" in schema:
        return _of_schema(where, named[schema["$ref"].rpartition("/")[2]], named)
    choices = _choices(schema)
    if choices is not None:
        return _Place(
            spaces.Discrete(len(choices)),
            lambda value: numpy.int64(choices.index(value)),
            lambda element: _chosen(choices, int(element)),
        )
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _numeric(schema, ())
    if kind == "string" and "maxLength" in schema:
        least = schema.get("minLength", 0)
        text = spaces.Text(schema["maxLength"], min_length=least, charset=string.printable)
        return _Place(text, str, str)
    if kind == "array":
        return _array(where, schema, named)
    if kind == "object" and schema.get("properties"):
        return _object(where, schema["properties"], named)
    if kind == "string":
        raise _no_space(where, "text has no bound; give it a `max_length`")
    raise _no_space(where, f"{kind or 'a choice of types'} has no space")


def _chosen(choices: Sequence[Any], place: int) -> Any:
    if not 0 <= place < len(choices):
        raise ValueError(f"there is no choice {place}")
    return choices[place]


def _choices(schema: Schema) -> list[Any] | None:
    if schema.get("type") == "boolean":
        return [False, True]
    return list(schema["enum"]) if "enum" in schema else [schema["const"]] if "const" in schema else None


def _bounds(schema: Schema) -> tuple[float | None, float | None]:
    """The least and the greatest value; None where there is no bound."""
    step = 1 if schema["type"] == "integer" else 0  # a Box includes its bounds
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    return low, high


def _numeric(schema: Schema, shape: tuple[int, ...]) -> _Place:
    low, high = _bounds(schema)
    is_whole = schema["type"] == "integer"
    if is_whole and low is not None and high is not None:
        count, first = int(high - low) + 1, int(low)
        if not shape:
            return _Place(spaces.Discrete(count, start=first), numpy.int64, int)
        many = spaces.MultiDiscrete(numpy.full(shape, count), start=numpy.full(shape, first))
        return _Place(many, lambda value: numpy.asarray(value, many.dtype), _plain)
    kind: Any = numpy.int64 if is_whole else numpy.float64
    ends = (numpy.iinfo(kind).min, numpy.iinfo(kind).max) if is_whole else (-numpy.inf, numpy.inf)
    box = spaces.Box(
        ends[0] if low is None else low, ends[1] if high is None else high, shape=shape, dtype=kind
    )
    return _Place(box, lambda value: numpy.asarray(value, box.dtype), _plain)


def _array(where: str, schema: Schema, named: Mapping[str, Schema]) -> _Place:
    """Lists in lists, of one kind of number, each of one length."""
    shape: list[int] = []
    inner = schema
    while inner.get("type") == "array":
        items = inner.get("prefixItems")
        length = len(items) if items else inner.get("minItems")
        if not length or (not items and inner.get("maxItems") != length):
            raise _no_space(where, "a list has no fixed length; give it `min_length` and `max_length`")
        if items and any(item != items[0] for item in items):
            raise _no_space(where, "a tuple has items of several kinds")
        shape.append(length)
        inner = items[0] if items else inner["items"]
        inner = named[inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
    if inner.get("type") == "boolean":
        binary = spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        return _Place(
            binary, lambda value: numpy.asarray(value, binary.dtype), lambda e: e.astype(bool).tolist()
        )
    if inner.get("type") not in ("integer", "number"):
        raise _no_space(where, "a list of anything but numbers has no space")
    return _numeric(inner, tuple(shape))


def _object(where: str, properties: Mapping[str, Schema], named: Mapping[str, Schema]) -> _Place:
    places = {name: _of_schema(f"{where}.{name}", schema, named) for name, schema in properties.items()}
    return _Place(
        spaces.Dict({name: place.space for name, place in places.items()}),
        lambda value: {name: place.element(value[name]) for name, place in places.items()},
        lambda element: {name: place.value(element[name]) for name, place in places.items()},
    )


def _given(space: "spaces.Space[Any]", annotation: Any) -> _Place:
    """A space the caller knows better: arrays are converted to its type, all else is passed as it is."""
    dtype = space.dtype if space.shape is not None else None

    def element(value: Any) -> Any:
        return value if dtype is None else numpy.asarray(value, dtype)

    return _Place(space, element, (lambda e: e) if annotation is numpy.ndarray else _plain)


def _plain(element: Any) -> Any:
    return element.tolist() if isinstance(element, numpy.ndarray | numpy.generic) else element


def _no_space(where: str, why: str) -> ConfigurationError:
    name = where.partition(".")[2]
    return ConfigurationError(
        f"there is no space for {where}: {why}, pass `spaces={{{name!r}: ...}}`, or leave the field out"
    )
