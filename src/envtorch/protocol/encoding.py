"""Values to bytes, in either format: any value, and observations with what travels beside them.

An observation is encoded by its own class, so a subclass keeps its fields; as JSON it goes straight to
bytes, as MessagePack it keeps its arrays as buffers. What cannot be encoded is the environment's failure, and
the error names the field.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter
from pydantic_core import SchemaSerializer, to_json

from envtorch.errors import EnvironmentFailed, EnvTorchError
from envtorch.protocol.formats import BY_NAME, JSON, Format
from envtorch.types import Observation, Scalar

__all__ = [
    "BESIDE",
    "Encoded",
    "encode",
    "encode_observation",
    "encode_value",
    "fallback",
    "not_finite",
    "reward_of",
]

MOST_DIGITS = 4300
"""How many digits a whole number may have in JSON: Python reads no longer ones."""
_BLOCK = MOST_DIGITS // 2

BESIDE = ("reward", "done")
"""The fields of an observation that travel beside it, and not in it."""


class _ObservationData(msgspec.Struct):
    """The `data` of an observation message. What is unset is left out."""

    observation: msgspec.Raw
    reward: Scalar | None
    done: bool
    metadata: msgspec.Raw | msgspec.UnsetType | None = msgspec.UNSET
    terminated: bool | msgspec.UnsetType = msgspec.UNSET
    truncated: bool | msgspec.UnsetType = msgspec.UNSET


class Encoded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An encoded observation: bytes where it is large, values where it is small."""

    format: str
    observation: bytes
    """The observation, without reward and done."""
    reward: Scalar | None
    done: bool
    metadata: bytes | None = None
    """The observation's metadata; None when there is none."""
    terminated: bool | None = None
    truncated: bool | None = None

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.observation) + len(self.metadata or b"")

    def data(self) -> bytes:
        """The `data` of an observation message on a WebSocket."""
        told = _ObservationData(msgspec.Raw(self.observation), self.reward, self.done)
        return self._written(told)

    def http_body(self) -> bytes:
        """The body of `POST /reset` and `/step`: a float reward, and `metadata` always there."""
        reward = None if self.reward is None else float(self.reward)
        return self._written(_ObservationData(msgspec.Raw(self.observation), reward, self.done, None))

    def _written(self, told: _ObservationData) -> bytes:
        if self.metadata is not None:
            told.metadata = msgspec.Raw(self.metadata)
        # Only for environments that set them: the others' messages are exactly OpenEnv's.
        if self.terminated is not None or self.truncated is not None:
            told.terminated, told.truncated = bool(self.terminated), bool(self.truncated)
        return BY_NAME[self.format].write(told)


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
    """A value as bytes. Raises `blame`, naming the field that cannot be encoded."""
    serializer = _serializer(type(value))
    try:
        if format is not JSON:
            plain = value if serializer is None else serializer.to_python(value, warnings=False)
            if exclude:
                plain = {key: item for key, item in plain.items() if key not in exclude}
            return format.write(plain)
        if serializer is not None:
            return _readable(serializer.to_json(value, exclude=exclude, fallback=fallback, warnings=False))
        if exclude and isinstance(value, dict):
            value = {key: item for key, item in value.items() if key not in exclude}
        return _to_json(value)
    except Exception as error:  # serialisers and computed fields are the author's code
        raise blame(_complaint(value, error, format)) from error


def _to_json(value: object) -> bytes:
    return _readable(to_json(value, by_alias=False, fallback=fallback, inf_nan_mode="null"))


def _readable(data: bytes) -> bytes:
    """The same JSON. Raises `ValueError` when a whole number in it is too long for a client to read."""
    if len(data) > MOST_DIGITS:
        # Digits that fill no block of half that length are no number of that length.
        blocks = (data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))
        if any(block.isdigit() for block in blocks):
            JSON.read(data)
    return data


def fallback(value: Any) -> Any:
    """Arrays, tensors and their scalars, of any library, all have `tolist`."""
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"Unable to serialize unknown type: {type(value)}")
    return tolist()


def _complaint(value: object, error: Exception, format: Format) -> str:
    write = _to_json if format is JSON else format.write
    try:
        where = ".".join(_path_to_fault(value, write, 0))
    except Exception:  # the value's own code again: then the error alone has to do
        where = ""
    return f"field {where!r} cannot be encoded: {error}" if where else f"cannot be encoded: {error}"


def _path_to_fault(value: object, write: Callable[[Any], bytes], depth: int) -> list[str]:
    """Where inside `value` the part lies that cannot be encoded; the error alone does not say."""
    if isinstance(value, Mapping):
        parts = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(str(index), item) for index, item in enumerate(value)]
    else:
        parts = list(getattr(value, "__dict__", {}).items())
    for name, part in parts if depth < 20 else []:
        try:
            write(part)
        except Exception:
            return [name, *_path_to_fault(part, write, depth + 1)]
    return []


# Observations.


class _Shape(msgspec.Struct, frozen=True):
    """What is known of a class of observations."""

    fields: frozenset[str] | None
    """The fields that every object of a model has; None for what is no model."""
    has_flags: bool
    """Whether `terminated` and `truncated` are those of `Observation`, and not fields of the author's own."""


_shapes: dict[type, _Shape] = {}
_EXCLUDED = set(BESIDE)


def encode_observation(
    observation: Any,
    format: Format = JSON,
    *,
    method: str = "step",
    expected: type = Observation,
    strict: bool = False,
) -> Encoded:
    """An observation as bytes.

    Raises `EnvironmentFailed` for what is no observation, lacks a field or cannot be encoded; the error names
    the `method` that returned it and the class that was `expected`. With `strict` a reward that is not finite
    is such a failure too; else it is None, as OpenEnv's wire has it.
    """
    kind = type(observation)
    shape = _shapes.get(kind) or _shape_of(kind, method, expected)
    if shape.fields is None:
        get = observation.get if isinstance(observation, Mapping) else _getter(observation)
    else:
        own: dict[str, Any] = observation.__dict__
        if not own.keys() >= shape.fields:
            missing = ", ".join(map(repr, sorted(shape.fields - own.keys())))
            raise EnvironmentFailed(
                f"{method} returned {kind.__name__} without {missing}: it was made without validation"
            )
        get = own.get
    terminated = truncated = None
    done, metadata = get("done", False), get("metadata", None)
    if shape.has_flags:
        terminated, truncated = get("terminated"), get("truncated")
        if terminated is not None:
            terminated = _truth("terminated", terminated)
        if truncated is not None:
            truncated = _truth("truncated", truncated)
        done = _truth("done", done) or terminated or truncated
        if terminated is None and truncated is not None:
            terminated = _truth("done", done) and not truncated
    return Encoded(
        format.name,
        encode(observation, format, exclude=_EXCLUDED),
        reward_of(get("reward", None), strict=strict, method=method),
        _truth("done", done),
        encode(metadata, format) if _truth("metadata", metadata) else None,
        terminated,
        truncated,
    )


def _shape_of(kind: type, method: str, expected: type) -> _Shape:
    if issubclass(kind, BaseModel):
        shape = _Shape(frozenset(kind.model_fields), has_own_flags(kind))
    elif dataclasses.is_dataclass(kind) or issubclass(kind, Mapping):
        shape = _Shape(None, False)
    else:
        article = "nothing (None)" if kind is type(None) else f"{kind.__name__}"
        hint = "; rewards and flags are fields of the observation" if kind is tuple else ""
        name = getattr(expected, "__name__", repr(expected))
        raise EnvironmentFailed(
            f"{method} returned {article}; it must return {name}{hint}", returned=kind.__name__, expected=name
        )
    _shapes[kind] = shape
    return shape


def has_own_flags(kind: type) -> bool:
    """Whether `terminated` and `truncated` of a class are inherited from `Observation`."""
    if not issubclass(kind, Observation):
        return False
    return all(
        next(base for base in kind.__mro__ if name in inspect.get_annotations(base)) is Observation
        for name in ("terminated", "truncated")
    )


def _truth(name: str, value: Any) -> bool:
    """Whether a value is true. An array of several does not know."""
    if value is False or value is True:
        return value
    try:
        return bool(value)
    except Exception as error:
        kind = type(value).__name__
        raise EnvironmentFailed(f"field {name!r} holds {kind}, which is neither true nor false") from error


def _getter(observation: object) -> Any:
    return lambda name, default=None: getattr(observation, name, default)


def reward_of(reward: Any, *, strict: bool = False, method: str = "step") -> Scalar | None:
    """A reward as Python's own number. One that is not finite is None, or `EnvironmentFailed` if `strict`."""
    if type(reward) is float and math.isfinite(reward):
        return reward
    if reward is None or type(reward) is bool:
        return reward
    try:
        if isinstance(reward, int) and -(2**63) <= reward < 2**64:
            return int(reward)  # of a subclass, too, which the formats do not know
        number = float(reward)  # numpy and torch scalars know how to become one
    except Exception:
        raise EnvironmentFailed(f"field 'reward' holds {type(reward).__name__}, which is no number") from None
    if math.isfinite(number):
        return number
    if strict:
        raise not_finite(number, method)
    return None


def not_finite(reward: float, method: str) -> EnvironmentFailed:
    """The failure of an environment whose reward is NaN or infinite: a batch with it in has no mean."""
    return EnvironmentFailed(
        f"{method} gave the reward {reward}: a reward is a finite number, or None where there is none"
    )
