"""What an observation says beside what was observed, and how the two travel.

An observation is encoded by its own class, so a subclass keeps its fields; as JSON it goes straight to
bytes, as MessagePack it keeps its arrays as buffers.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any

import msgspec
from pydantic_core import PydanticSerializationError

from envtorch.errors import EnvironmentFailed
from envtorch.protocol.encoding import complaint, encode, fallback
from envtorch.protocol.formats import JSON, Format
from envtorch.types import Observation, Scalar

__all__ = [
    "ENVELOPE",
    "ENVELOPE_FIELDS",
    "Encoded",
    "encode_observation",
    "encode_observation_alone",
    "envelope_columns",
    "envelope_of",
    "flag",
    "number_of",
    "numbers_of",
    "write_plain",
]

ENVELOPE = {"reward", "done"}
"""What travels beside an observation, and not in it."""


class Encoded(msgspec.Struct, frozen=True):
    """An observation on its way out: bytes where it is large, values where it is small."""

    format: Format
    observation: bytes
    """The observation, without reward and done."""
    reward: Scalar | None
    done: bool
    metadata: bytes | None
    """The observation's metadata; None when there is none."""
    terminated: bool | None
    truncated: bool | None


def encode_observation_alone(observation: object, format: Format) -> bytes:
    """An observation, without what travels beside it."""
    return encode(observation, format, exclude=ENVELOPE)


ENVELOPE_FIELDS = {"reward": None, "done": False, "metadata": None, "terminated": None, "truncated": None}

_of_model: Callable[[dict[str, Any]], Sequence[Any]] = itemgetter(*ENVELOPE_FIELDS)
_writers: dict[type, Callable[..., bytes]] = {}
"""How the subclasses of `Observation` met so far are written as JSON."""

_PLAIN = b'{"observation":%b,"reward":%b,"done":%b}'
_TRUE, _FALSE = b"true", b"false"
_NUMBERS = frozenset((float, int, bool, NoneType))
_number = msgspec.json.encode


def envelope_of(observation: Any) -> Sequence[Any]:
    """What an observation says beside what was observed: reward, done, metadata, terminated, truncated."""
    if type(observation) in _writers:
        try:
            return _of_model(observation.__dict__)
        except KeyError:  # made without validation
            pass
    if isinstance(observation, dict):
        return [observation.get(name, default) for name, default in ENVELOPE_FIELDS.items()]
    if isinstance(observation, Observation):
        _writers.setdefault(type(observation), type(observation).__pydantic_serializer__.to_json)
    return [getattr(observation, name, default) for name, default in ENVELOPE_FIELDS.items()]


def envelope_columns(observations: Sequence[Any]) -> Sequence[list[Any]]:
    """`envelope_of`, for many: a list of all rewards, one of all `done`s, and so on."""
    if _writers.keys() >= set(map(type, observations)):
        own = [one.__dict__ for one in observations]
        try:
            return [[each[name] for each in own] for name in ENVELOPE_FIELDS]
        except KeyError:  # one was made without validation
            pass
    return list(map(list, zip(*map(envelope_of, observations), strict=True)))


def flag(value: object) -> bool | None:
    """An environment's own field of that name may hold anything; only a boolean is a flag."""
    return value if isinstance(value, bool) else None


def numbers_of(rewards: list[Any]) -> list[Scalar | None]:
    """`number_of`, for many."""
    return rewards if _NUMBERS.issuperset(map(type, rewards)) else [number_of(reward) for reward in rewards]


def number_of(reward: Any) -> Scalar | None:
    """A reward as Python's own number; numpy and torch scalars know how to become one."""
    if reward is None or isinstance(reward, bool | int | float):
        return reward
    try:
        return float(reward)
    except (TypeError, ValueError):
        raise EnvironmentFailed(f"field 'reward' holds {type(reward).__name__}, which is no number") from None


def encode_observation(observation: object, format: Format = JSON) -> Encoded:
    """An observation as bytes. Raises `EnvironmentFailed`, naming the field it cannot encode."""
    reward, done, metadata, terminated, truncated = envelope_of(observation)
    if terminated is not None or truncated is not None:
        terminated, truncated = flag(terminated), flag(truncated)
        done = done or terminated or truncated
    return Encoded(
        format,
        encode(observation, format, exclude=ENVELOPE),
        reward if reward is None or type(reward) is float else number_of(reward),
        bool(done),
        encode(metadata, format) if metadata else None,
        terminated,
        truncated,
    )


def write_plain(observation: object) -> bytes | None:
    """The JSON of an observation that has a reward, a `done` and nothing unusual; None of any other.

    Nearly all are plain, and this is the shortest way from them to the wire.
    """
    write = _writers.get(type(observation))
    if write is None:
        return None
    try:
        reward, done, metadata, terminated, truncated = _of_model(observation.__dict__)
    except KeyError:  # made without validation
        return None
    if metadata or terminated is not None or truncated is not None or type(reward) not in _NUMBERS:
        return None
    try:
        body = write(observation, exclude=ENVELOPE, fallback=fallback, warnings=False)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise EnvironmentFailed(complaint(observation, error)) from error
    return _PLAIN % (body, _number(reward), _TRUE if done else _FALSE)
