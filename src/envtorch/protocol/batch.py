"""Many steps in one message: `steps` on the extended wire, and the columns it is answered with.

A `steps` request names the channels it is for and has one action for each. The sessions that answer at the
same time are answered in one message: a list of observations, one of rewards, one of `done`s. Environments
whose author wrote `step_many` may give the fields of their observations as columns, and take their actions as
columns; in MessagePack an array travels as its buffer, and the client gets a view of the frame it came in.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from pydantic import BaseModel

from envtorch.errors import EnvironmentFailed, InvalidAction, ProtocolError
from envtorch.protocol.columns import as_lists, is_array, rows_of, table_of
from envtorch.protocol.encoding import (
    BESIDE,
    Encoded,
    encode_value,
    has_own_flags,
    not_finite,
    reward_of,
)
from envtorch.protocol.formats import JSON, READ_ERRORS, Format

__all__ = [
    "Columns",
    "Share",
    "Steps",
    "column_of",
    "lost_rewards",
    "payloads_of",
    "pick",
    "write_rows",
    "write_together",
]


NOTHING = msgspec.Raw(b"")

_BESIDE_COLUMNS = {"reward": None, "done": False, "metadata": None, "terminated": None, "truncated": None}
"""What travels beside observations, and what stands for it where a class has no such field."""


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


def write_rows(steps: Sequence[Encoded], channels: list[int], format: Format) -> bytes:
    """The observations of several sessions, as the data of one reply."""
    columns: dict[str, Any] = {
        "ch": channels,
        "reward": [step.reward for step in steps],
        "done": [step.done for step in steps],
        "observation": [msgspec.Raw(step.observation) for step in steps],
    }
    if any(step.metadata is not None for step in steps):
        columns["metadata"] = [step.metadata and msgspec.Raw(step.metadata) for step in steps]
    if any(step.terminated is not None or step.truncated is not None for step in steps):
        columns["terminated"] = [_terminated(step) for step in steps]
        columns["truncated"] = [bool(step.truncated) for step in steps]
    return format.write(columns)


def _terminated(step: Encoded) -> bool:
    """A step that says nothing of how it ended has terminated where it is done."""
    return step.done if step.terminated is None and step.truncated is None else bool(step.terminated)


def write_together(kind: type, given: Mapping[str, Any], channels: list[int], format: Format) -> bytes:
    """Observations of class `kind` that are columns already, as the data of one reply.

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
        own = [name for name in _BESIDE_COLUMNS if table.says(name, checked)]
        if not has_own_flags(kind):  # then they are fields like any other
            own = [name for name in own if name not in ("terminated", "truncated")]
        beside = [
            as_lists(checked[name]) if name in own else [default] * len(channels)
            for name, default in _BESIDE_COLUMNS.items()
        ]
        told = _beside(channels, *beside) | {"fields": _written(fields, format)}
        return format.write(told)
    except Exception as error:  # the values are the author's, and so is what serialises them
        raise EnvironmentFailed(f"what step_many gave cannot be sent: {error}") from error


def lost_rewards(given: Mapping[str, Any]) -> dict[int, EnvironmentFailed]:
    """The failures, by place, in columns whose rewards are not all finite."""
    rewards = as_lists(given.get("reward", ()))
    return {
        place: not_finite(reward, "step_many")
        for place, reward in enumerate(rewards)
        if reward is not None and not math.isfinite(reward)
    }


def _written(fields: dict[str, Any], format: Format) -> Any:
    if format is not JSON:
        return fields
    return msgspec.Raw(encode_value(fields, format))


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
    columns = {"ch": channels, "reward": list(map(reward_of, reward)), "done": list(map(bool, done))}
    if any(metadata):
        columns["metadata"] = metadata
    if said_how:
        columns["terminated"] = [
            bool(d and not c if t is None else t) for d, t, c in zip(done, terminated, truncated, strict=True)
        ]
        columns["truncated"] = [bool(flag) for flag in truncated]
    return columns


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
    return tuple(name for name in shown if name not in BESIDE)


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


def payloads_of(columns: Columns, format: Format) -> list[dict[str, Any] | ProtocolError]:
    """What an `observations` reply says of each session, as in a reply to one.

    In place of what cannot be read stands the error.
    """
    told = {name: getattr(columns, name) for name in _BESIDE_COLUMNS}
    beside = {name: column for name, column in told.items() if column is not None}
    payloads: list[dict[str, Any] | ProtocolError] = []
    for place, row in enumerate(_rows_in(columns, format)):
        if isinstance(row, ProtocolError):
            payloads.append(row)
            continue
        payload = {"observation": row} | {name: column[place] for name, column in beside.items()}
        if not payload.get("metadata", True):
            del payload["metadata"]
        payloads.append(payload)
    return payloads


def _rows_in(columns: Columns, format: Format) -> Sequence[Any]:
    """The observations in an `observations` reply; read one by one where they cannot be read together."""
    raw, fields = bytes(columns.observation), bytes(columns.fields)
    try:
        if raw:
            return cast("list[Any]", format.read(raw))
        return rows_of(format.read(fields) if fields else {}) or [{} for _ in columns.ch]
    except READ_ERRORS as error:
        try:
            rows = format.reader(list[msgspec.Raw]).decode(raw)
        except READ_ERRORS:
            return [_unread(error)] * len(columns.ch)
    return [_read_row(bytes(row), format) for row in rows]


def _read_row(row: bytes, format: Format) -> Any:
    try:
        return format.read(row)
    except READ_ERRORS as error:
        return _unread(error)


def _unread(error: Exception) -> ProtocolError:
    return ProtocolError(f"the reply cannot be read: {error}")


def pick(columns: bytes, index: int, format: Format) -> Encoded:
    """One session's share of an `observations` reply."""
    read: dict[str, Any] = format.read(columns)
    if "fields" in read:
        observation: Any = {name: column[index] for name, column in read["fields"].items()}
    else:
        observation = read["observation"][index]

    def told(name: str) -> Any:
        return read[name][index] if read.get(name) is not None else None

    metadata = told("metadata")
    return Encoded(
        format.name,
        format.write(observation),
        told("reward"),
        told("done"),
        format.write(metadata) if metadata else None,
        told("terminated"),
        told("truncated"),
    )


class Share(NamedTuple):
    """One session's part of what `step_many` returned as columns, already encoded for all."""

    columns: bytes
    place: int
    format: Format

    @property
    def size(self) -> int:
        """How many bytes it keeps in memory: the columns of all sessions."""
        return len(self.columns)

    def encoded(self) -> Encoded:
        """The part by itself, for a caller who asks again."""
        return pick(self.columns, self.place, self.format)
