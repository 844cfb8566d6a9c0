"""Values to bytes and back: one `Codec`, built once per environment, for every kind of class.

pydantic models, `@dataclass` subclasses of ours and plain dataclasses all go through pydantic-core.
An observation is encoded by its own class, so a subclass keeps its fields; as JSON it goes straight to
bytes, as MessagePack it keeps its arrays as buffers.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from types import NoneType
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer, to_json

from envtorch.env import EnvSpec
from envtorch.errors import EnvironmentFailed, EnvTorchError, InvalidAction, ProtocolError
from envtorch.protocol.adapters import Adapter, adapter_of, json_reader
from envtorch.protocol.columns import rows_of, table_of
from envtorch.protocol.formats import JSON, Format, Unencodable
from envtorch.protocol.messages import invalid
from envtorch.together import Actions
from envtorch.tools import CallToolAction, ListToolsAction
from envtorch.types import Action, ActT, Observation, ObsT, Scalar, StateT, StepResult

__all__ = [
    "ENVELOPE",
    "ENVELOPE_FIELDS",
    "Codec",
    "Encoded",
    "encode_observation_alone",
    "encode_value",
    "envelope_of",
    "envelopes_of",
    "fallback",
    "numbers_of",
]


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


class Codec(Generic[ActT, ObsT, StateT]):
    """Validates, describes and encodes the classes of one environment."""

    def __init__(self, spec: EnvSpec[ActT, ObsT, StateT]) -> None:
        self.spec = spec
        self._action = adapter_of(spec.action)
        self._read_action: Callable[[bytes], ActT] = json_reader(self._action)
        self._actions: TypeAdapter[list[ActT]] = TypeAdapter(list[spec.action])  # type: ignore[name-defined]
        self._observations: TypeAdapter[list[ObsT]] = TypeAdapter(list[spec.observation])  # type: ignore[name-defined]
        self._observation: TypeAdapter[ObsT] = TypeAdapter(spec.observation)
        self._fit_observation: Callable[[Any], ObsT] = self._observation.validator.validate_python
        self._state: TypeAdapter[StateT] = TypeAdapter(spec.state)
        self.takes_tool_actions = spec.action in (CallToolAction, ListToolsAction)
        self._tool_actions = _TOOL_ACTIONS if self.takes_tool_actions or spec.action is Action else {}
        self._lifted = [name for name in ("reward", "done") if name in _field_names(spec.observation)]

    # The server's side.

    def decode_action(self, payload: bytes | Mapping[str, Any], format: Format = JSON) -> ActT:
        """The action in `payload`. Raises `InvalidAction`, whatever a validator of its class does."""
        try:
            if format is JSON and type(payload) is bytes and not self._tool_actions:
                return self._read_action(payload)
            given: Any = payload
            if isinstance(payload, bytes) and format is not JSON:
                given = format.read(payload)
            adapter = self._tool_actions.get(_type_in(given)) if self._tool_actions else None
            adapter = adapter or self._action
            decoded: ActT = (
                adapter.validate_json(given) if isinstance(given, bytes) else adapter.validate_python(given)
            )
        except Exception as error:  # validators are foreign code
            raise invalid(error) from error
        return decoded

    def write_plain(self, observation: object) -> bytes | None:
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
            raise EnvironmentFailed(_complaint(observation, error)) from error
        return _PLAIN % (body, _number(reward), _TRUE if done else _FALSE)

    def decode_actions(self, payload: bytes, format: Format = JSON) -> list[ActT] | None:
        """A list of actions, read at once; None when that cannot be done, and they are read one by one."""
        if self._tool_actions or not isinstance(self._action, TypeAdapter):
            return None
        try:
            if format is JSON:
                return self._actions.validate_json(payload)
            return self._actions.validate_python(format.read(payload))
        except Exception:  # which one is wrong, and how, is found out one by one
            return None

    def decode_columns(self, payload: bytes, count: int, format: Format = JSON) -> Actions[ActT] | None:
        """Actions that came as columns, checked; None when they have to be read one by one."""
        table = None if self._tool_actions else table_of(self.spec.action)
        if table is None:
            return None
        try:
            columns = table.checked(format.read(payload), count)
        except Exception:  # which one is wrong, and how, is found out one by one
            return None
        return Actions(count, lambda: self._actions.validate_python(rows_of(columns)), columns)

    def encode_columns(self, actions: Sequence[ActT], format: Format = JSON) -> bytes | None:
        """Actions as columns; None when they have to be written one by one."""
        columns = self._columns_of(actions)
        return None if columns is None else encode_value(columns, format, blame=InvalidAction)

    def _columns_of(self, actions: Sequence[ActT]) -> dict[str, Any] | None:
        table = table_of(self.spec.action)
        if table is None or set(map(type, actions)) != {table.kind}:
            return None
        try:
            return table.columns(actions)
        except KeyError:  # one was made without validation
            return None

    def encode_actions(self, actions: Sequence[ActT], format: Format = JSON) -> bytes | None:
        """Actions as a list; None when they have to be written one by one."""
        if format is not JSON:
            columns = self._columns_of(actions)
            return encode_value(rows_of(columns), format, blame=InvalidAction) if columns else None
        if not self.encodes_lists:
            return None
        try:
            return self._actions.serializer.to_json(actions, fallback=fallback, warnings=False)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise InvalidAction(f"an action cannot be encoded: {error}") from error

    def encode_observation(self, observation: object, format: Format = JSON) -> Encoded:
        """An observation as bytes. Raises `EnvironmentFailed`, naming the field it cannot encode."""
        reward, done, metadata, terminated, truncated = envelope_of(observation)
        if terminated is not None or truncated is not None:
            terminated, truncated = _flag(terminated), _flag(truncated)
            done = done or terminated or truncated
        return Encoded(
            format,
            _encode(observation, format, exclude=ENVELOPE),
            reward if reward is None or type(reward) is float else number_of(reward),
            bool(done),
            _encode(metadata, format) if metadata else None,
            terminated,
            truncated,
        )

    def schemas(self, state: type | None = None) -> dict[str, dict[str, Any]]:
        """JSON schemas of everything that travels, as `GET /schema` tells them."""
        first = self.spec.reset_observation
        observation = self._observation.json_schema()
        return {
            "action": self._action.json_schema(),
            "observation": observation,
            "state": (TypeAdapter(state) if state else self._state).json_schema(),
            "reset_observation": TypeAdapter(first).json_schema() if first else observation,
        }

    # The client's side.

    def encode_action(self, action: ActT, format: Format = JSON) -> bytes:
        """An action as bytes. A dictionary is taken as it is."""
        return _encode(action, format, blame=InvalidAction)

    def decode_result(self, payload: Mapping[str, Any]) -> StepResult[ObsT]:
        """The result in the `data` of an observation message."""
        get = payload.get
        observed = get("observation", {})
        if self._lifted:
            observed = observed | {name: payload[name] for name in self._lifted if name in payload}
        try:
            observation = self._fit_observation(observed)
        except ValidationError as error:
            raise _misfit("observation", error) from error
        return StepResult(
            observation,
            get("reward"),
            bool(get("done", False)),
            get("metadata"),
            get("terminated"),
            get("truncated"),
        )

    def decode_observations(
        self, payload: bytes, rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT] | None:
        """The observations in a JSON list, with their rewards; None when they are read one by one."""
        if not self._takes_rewards_later:
            return None
        try:
            observations = self._observations.validate_json(payload)
        except ValidationError as error:
            raise ProtocolError(f"the server's observations do not fit: {error}") from error
        return self._with_rewards(observations, rewards, dones)

    def _with_rewards(
        self, observations: list[ObsT], rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT]:
        if self._lifted:
            for observation, reward, done in zip(observations, rewards, dones, strict=True):
                own = observation.__dict__
                own["reward"], own["done"] = reward, done
        return observations

    def decode_fields(
        self, fields: Mapping[str, Any], rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT]:
        """The observations in columns, with their rewards."""
        if self._takes_rewards_later:
            observations = _fit(self._observations, rows_of(fields), "observations")
            return self._with_rewards(observations, rewards, dones)
        beside = {"reward": rewards, "done": dones}
        fields = {**fields, **{name: beside[name] for name in self._lifted}}
        return _fit(self._observations, rows_of(fields), "observations")

    @cached_property
    def _takes_rewards_later(self) -> bool:
        """Whether an observation can be made without `reward` and `done`, and be given them then."""
        table = table_of(self.spec.observation)
        if table is None or len(self._lifted) == 1:
            return not self._lifted
        return not any(table.fields[name].is_required() for name in self._lifted)

    @property
    def encodes_lists(self) -> bool:
        """Whether actions are of a class that can be written many at once."""
        return isinstance(self.spec.action, type) and issubclass(self.spec.action, BaseModel)

    def decode_state(self, payload: Mapping[str, Any]) -> StateT:
        """The state in the `data` of a state message."""
        return _fit(self._state, payload, "state")


T = TypeVar("T")

ENVELOPE = {"reward", "done"}
"""What travels beside an observation, and not in it."""

_TOOL_ACTIONS: dict[str, Adapter] = {
    "list_tools": TypeAdapter(ListToolsAction),
    "call_tool": TypeAdapter(CallToolAction),
}
"""What an environment of tools, or of any action at all, understands by these types."""


class _Typed(msgspec.Struct):
    type: Any = None


def _type_in(payload: Any) -> str:
    if isinstance(payload, bytes):
        return str(msgspec.json.decode(payload, type=_Typed).type)
    return str(payload.get("type")) if isinstance(payload, Mapping) else ""


def encode_value(
    value: object, format: Format = JSON, *, blame: type[EnvTorchError] = EnvironmentFailed
) -> bytes:
    """Any value as bytes: models, dataclasses, arrays, tensors and plain containers."""
    return _encode(value, format, blame=blame)


def encode_observation_alone(observation: object, format: Format) -> bytes:
    """An observation, without what travels beside it."""
    return _encode(observation, format, exclude=ENVELOPE)


def _fit(adapter: TypeAdapter[T], payload: object, what: str) -> T:
    try:
        return adapter.validate_python(payload)
    except ValidationError as error:
        raise _misfit(what, error) from error


def _misfit(what: str, error: ValidationError) -> ProtocolError:
    return ProtocolError(f"the server's {what} does not fit {error.title}: {error}")


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


def envelopes_of(observations: Sequence[Any]) -> list[Sequence[Any]]:
    """`envelope_of`, for many."""
    if _writers.keys() >= set(map(type, observations)):
        try:
            return [_of_model(one.__dict__) for one in observations]
        except KeyError:  # one was made without validation
            pass
    return list(map(envelope_of, observations))


def _flag(value: object) -> bool | None:
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


def _encode(
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
    except (PydanticSerializationError, Unencodable, ValueError, RecursionError) as error:
        raise blame(_complaint(value, error)) from error


def fallback(value: Any) -> Any:
    """Arrays, tensors and their scalars, of any library, all have `tolist`."""
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"Unable to serialize unknown type: {type(value)}")
    return tolist()


def _complaint(value: object, error: Exception) -> str:
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


def _field_names(cls: type) -> set[str]:
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        return set(cls.model_fields)
    if dataclasses.is_dataclass(cls):
        return {field.name for field in dataclasses.fields(cls)}
    return set()
