"""Many steps in one message: `steps` on the extended wire, and the columns it is answered with.

A `steps` request names the channels it is for and has one action for each. What many sessions answer
together travels as columns: all observations, all rewards, all `done`s. One validation reads all actions and
one serialisation writes all observations, which is most of what a step costs.

Where they can be, the fields of the observations are columns themselves: in JSON when their values are plain
ones, in MessagePack always, where arrays of one shape become one array with one more dimension, which the
client gets as a view of the frame it came in. Environments that step together may give such columns
themselves, and actions may come as columns.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaSerializer, to_json

from envtorch.errors import EnvironmentFailed, InvalidAction
from envtorch.protocol.columns import as_lists, is_array, rows_of, table_of
from envtorch.protocol.encoding import encode_value, fallback
from envtorch.protocol.envelope import (
    ENVELOPE,
    ENVELOPE_FIELDS,
    encode_observation_alone,
    envelope_columns,
    numbers_of,
)
from envtorch.protocol.formats import JSON, READ_ERRORS, Format
from envtorch.protocol.wire import Reply
from envtorch.types import Observation

__all__ = ["Columns", "Steps", "column_of", "pick", "write_columns", "write_together"]


NOTHING = msgspec.Raw(b"")


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data of a `steps` request."""

    ch: list[int]
    """The channels that take a step."""
    actions: msgspec.Raw = NOTHING
    """A list: the action of each."""
    columns: msgspec.Raw = NOTHING
    """Or, in place of it, a column for each field of the actions."""

    def rows(self, format: Format) -> list[msgspec.Raw]:
        """The actions one by one, each still encoded. Raises `InvalidAction` when there are not as many."""
        if bytes(self.columns):
            rows = self._columns_apart(format)
        else:
            rows = _read_as(list[msgspec.Raw], bytes(self.actions), format)
        if len(rows) != len(self.ch):
            raise InvalidAction(f"{len(self.ch)} channels, but {len(rows)} actions")
        return rows

    def _columns_apart(self, format: Format) -> list[msgspec.Raw]:
        columns = _read_as(dict[str, Any], bytes(self.columns), format)
        for name, column in columns.items():
            given = len(column) if is_array(column) or isinstance(column, list) else "no"
            if given != len(self.ch):
                raise InvalidAction(f"column {name!r} has {given} values for {len(self.ch)} channels")
        rows = rows_of(columns) if columns else [{}] * len(self.ch)
        return [msgspec.Raw(encode_value(row, format, blame=InvalidAction)) for row in rows]


def _read_as(kind: Any, raw: bytes, format: Format) -> Any:
    try:
        return format.reader(kind).decode(raw)
    except READ_ERRORS as error:
        raise InvalidAction(f"Invalid message: {error}") from None


class Columns(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of an `observations` reply: what the sessions of these channels answered."""

    ch: list[int]
    reward: list[Any]
    done: list[bool]
    observation: msgspec.Raw = NOTHING
    """A list of observations."""
    fields: msgspec.Raw = NOTHING
    """Or a column for each of their fields."""
    metadata: list[Any] | None = None
    terminated: list[bool] | None = None
    truncated: list[bool] | None = None


def write_columns(observations: Sequence[object], channels: list[int], format: Format) -> bytes:
    """What sessions answered, as the data of one reply.

    Raises `EnvironmentFailed` when one of them cannot be encoded; which one, only one by one will tell.
    """
    try:
        plain = _plain_columns(observations) if format is JSON else None
        if plain is not None:
            fields, beside = plain
            return format.write(_beside(channels, *beside) | {"fields": fields})
        told = _beside(channels, *envelope_columns(observations))
        columns = _fields(observations) if format is not JSON else None
        if columns is not None:
            return format.write(told | {"fields": columns})
        return format.write(told | {"observation": msgspec.Raw(_rows(observations, format))})
    except (TypeError, ValueError, OverflowError) as error:
        raise EnvironmentFailed(f"an observation cannot be encoded: {error}") from error


def write_together(kind: type, given: Mapping[str, Any], channels: list[int], format: Format) -> bytes:
    """`write_columns`, of observations of class `kind` that are columns already.

    Raises `EnvironmentFailed` when they do not fit the class, naming the column.
    """
    table, names = table_of(kind), _plain_fields(kind)
    if table is None or names is None:
        raise EnvironmentFailed(
            f"step_many gave columns, but {kind.__name__} has validators, serialisers or aliases of its own: "
            "let it give a list of observations"
        )
    try:
        checked = table.checked(given, len(channels))
        fields = {name: checked[name] for name in names}
        beside = [
            as_lists(checked[name]) if table.says(name, checked) else [default] * len(channels)
            for name, default in ENVELOPE_FIELDS.items()
        ]
        told = _beside(channels, *beside) | {"fields": _written(fields, format)}
        return format.write(told)
    except (ValueError, TypeError, OverflowError, PydanticSerializationError, RecursionError) as error:
        raise EnvironmentFailed(f"what step_many gave cannot be sent: {error}") from error


def _written(fields: dict[str, Any], format: Format) -> Any:
    if format is not JSON:
        return fields
    return msgspec.Raw(to_json(fields, fallback=fallback, inf_nan_mode="null"))


def _beside(
    channels: list[int],
    reward: list[Any],
    done: list[Any],
    metadata: list[Any],
    terminated: list[Any],
    truncated: list[Any],
) -> dict[str, Any]:
    """The columns of what travels beside observations."""
    said_how = not (terminated.count(None) == truncated.count(None) == len(channels))
    if said_how:
        done = [d or t or c for d, t, c in zip(done, terminated, truncated, strict=True)]
    columns = {"ch": channels, "reward": numbers_of(reward), "done": list(map(bool, done))}
    if any(metadata):
        columns["metadata"] = metadata
    if said_how:
        columns["terminated"] = [bool(flag) for flag in terminated]
        columns["truncated"] = [bool(flag) for flag in truncated]
    return columns


def _rows(observations: Sequence[object], format: Format) -> bytes:
    kind = type(observations[0])
    if format is JSON and issubclass(kind, Observation) and set(map(type, observations)) == {kind}:
        try:
            return _list_writer(kind).to_json(
                observations, exclude={"__all__": ENVELOPE}, fallback=fallback, warnings=False
            )
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise EnvironmentFailed(f"an observation cannot be encoded: {error}") from error
    encoded = [encode_observation_alone(one, format) for one in observations]
    if format is JSON:
        return b"[%b]" % b",".join(encoded)
    return format.write([msgspec.Raw(one) for one in encoded])


_list_writers: dict[type, SchemaSerializer] = {}


def _list_writer(kind: type) -> SchemaSerializer:
    found = _list_writers.get(kind)
    if found is None:
        found = _list_writers[kind] = TypeAdapter(list[kind]).serializer  # type: ignore[valid-type]
    return found


def _plain_columns(observations: Sequence[Any]) -> tuple[dict[str, Any], list[list[Any]]] | None:
    """A column for each field, and those that go beside them; None where one has more than plain values."""
    kind = type(observations[0])
    table, names = table_of(kind), _plain_fields(kind)
    if table is None or names is None or set(map(type, observations)) != {kind}:
        return None
    try:
        columns = table.columns(observations, table.fields)
        beside = [columns[name] for name in ENVELOPE_FIELDS]
    except KeyError:  # it is no `Observation` of ours, or was made without validation
        return None
    fields = {name: columns[name] for name in names}
    return (fields, beside) if all(map(table.is_plain, fields, fields.values())) else None


def _fields(observations: Sequence[Any]) -> dict[str, Any] | None:
    """A column for each field; None where a class has its own way to be serialised."""
    kind = type(observations[0])
    names = _plain_fields(kind)
    if names is None or set(map(type, observations)) != {kind}:
        return None
    return {name: column_of([getattr(one, name) for one in observations]) for name in names}


_plain: dict[type, tuple[str, ...] | None] = {}


def _plain_fields(kind: type) -> tuple[str, ...] | None:
    if kind not in _plain:
        _plain[kind] = _find_plain_fields(kind)
    return _plain[kind]


def _find_plain_fields(kind: type) -> tuple[str, ...] | None:
    if issubclass(kind, BaseModel):
        own = kind.__pydantic_decorators__
        if own.model_serializers or own.field_serializers or own.computed_fields:
            return None
        shown = [name for name, field in kind.model_fields.items() if not field.exclude]
    elif dataclasses.is_dataclass(kind):
        shown = [field.name for field in dataclasses.fields(kind)]
    else:
        return None
    return tuple(name for name in shown if name not in ENVELOPE)


def column_of(values: list[Any]) -> Any:
    """The values as one array with one more dimension, where they are arrays of one shape; else a list."""
    first = values[0]
    if not (hasattr(first, "__array_interface__") and getattr(first, "ndim", 0) > 0):
        return values
    like = (first.shape, first.dtype)
    if any((getattr(value, "shape", None), getattr(value, "dtype", None)) != like for value in values):
        return values
    import numpy

    return numpy.stack(values)


def pick(columns: bytes, index: int, format: Format) -> Reply:
    """One session's share of an `observations` reply, as the reply to its own step."""
    read: dict[str, Any] = format.read(columns)
    if "fields" in read:
        observation: Any = {name: column[index] for name, column in read["fields"].items()}
    else:
        observation = read["observation"][index]
    told = ("reward", "done", "metadata", "terminated", "truncated")
    data = {"observation": observation} | {name: read[name][index] for name in told if name in read}
    if not data.get("metadata", True):
        del data["metadata"]
    return Reply("observation", format.write(data), format)
