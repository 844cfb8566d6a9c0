"""Values to bytes and back: one `Codec`, built once per environment, for every kind of class.

pydantic models, `@dataclass` subclasses of ours and plain dataclasses all go through pydantic-core.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from envtorch.batch_actions import Actions
from envtorch.env import EnvSpec
from envtorch.errors import InvalidAction, ProtocolError
from envtorch.protocol.adapters import Adapter, adapter_of, json_reader
from envtorch.protocol.columns import rows_of, table_of
from envtorch.protocol.encoding import BESIDE, encode, fallback
from envtorch.protocol.formats import JSON, READ_ERRORS, Format
from envtorch.protocol.messages import invalid
from envtorch.tools import CallToolAction, ListToolsAction
from envtorch.types import Action, ActT, ObsT, StateT, StepResult

__all__ = ["Codec"]


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
        knows_tools = self.takes_tool_actions or spec.has_tool_steps or spec.action is Action
        self._tool_actions = _TOOL_ACTIONS if knows_tools else {}
        self._lifted = [name for name in BESIDE if name in _field_names(spec.observation)]

    # The server's side.

    @cached_property
    def with_tool_steps(self) -> "Codec[ActT, ObsT, StateT]":
        """The same for an environment whose steps may be calls of tools too (`ToolSteps`)."""
        return self if self._tool_actions else Codec(dataclasses.replace(self.spec, has_tool_steps=True))

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
        given = {name: columns[name] for name in columns if columns.was_given(name)}
        return Actions(count, lambda: self._actions.validate_python(rows_of(given) or [{}] * count), columns)

    def encode_columns(self, actions: Sequence[ActT], format: Format = JSON) -> bytes | None:
        """Actions as columns; None when they have to be written one by one."""
        columns = self._columns_of(actions)
        return None if columns is None else encode(columns, format, blame=InvalidAction)

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
            return encode(rows_of(columns), format, blame=InvalidAction) if columns else None
        if set(map(type, actions)) != {self.spec.action} or not self.encodes_lists:
            return None  # of a subclass, only the fields of the class would be written
        try:
            return self._actions.serializer.to_json(actions, fallback=fallback, warnings=False)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise InvalidAction(f"an action cannot be encoded: {error}") from error

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
        return encode(action, format, blame=InvalidAction)

    def decode_result(self, payload: Mapping[str, Any]) -> StepResult[ObsT]:
        """The result in the `data` of an observation message."""
        get = payload.get
        reward, terminated, truncated = get("reward"), get("terminated"), get("truncated")
        done = bool(get("done") or terminated or truncated)
        observed = dict(get("observation", {}))
        for name, value in (("reward", reward), ("done", done)):
            if name in self._lifted and name in payload:
                observed[name] = value
        try:
            observation = self._fit_observation(observed)
        except ValidationError as error:
            raise _misfit("observation", error) from error
        return StepResult(observation, reward, done, get("metadata"), terminated, truncated)

    def decode_observations(
        self, payload: bytes, rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT] | None:
        """The observations in a JSON list, with their rewards."""
        try:
            rows = JSON.read(payload)
        except READ_ERRORS as error:
            raise ProtocolError(f"the reply cannot be read: {error}") from error
        return self._with_rewards(rows, rewards, dones)

    def decode_fields(
        self, fields: Mapping[str, Any], rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT]:
        """The observations in columns, with their rewards."""
        return self._with_rewards(rows_of(fields) or [{} for _ in dones], rewards, dones)

    def _with_rewards(
        self, rows: Sequence[Mapping[str, Any]], rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT]:
        beside = {"reward": rewards, "done": dones}
        whole = [dict(row) for row in rows]
        for name in self._lifted:
            for row, value in zip(whole, beside[name], strict=True):
                row[name] = value
        return _fit(self._observations, whole, "observations")

    @property
    def encodes_lists(self) -> bool:
        """Whether actions are of a class that can be written many at once."""
        return isinstance(self.spec.action, type) and issubclass(self.spec.action, BaseModel)

    def decode_state(self, payload: Mapping[str, Any]) -> StateT:
        """The state in the `data` of a state message."""
        return _fit(self._state, payload, "state")


T = TypeVar("T")

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


def _fit(adapter: TypeAdapter[T], payload: object, what: str) -> T:
    try:
        return adapter.validate_python(payload)
    except ValidationError as error:
        raise _misfit(what, error) from error


def _misfit(what: str, error: ValidationError) -> ProtocolError:
    told = [f"{'.'.join(map(str, one['loc'])) or what}: {one['msg']}" for one in error.errors()[:3]]
    return ProtocolError(
        f"the server's {what} does not fit {error.title} ({'; '.join(told)}): "
        "is this client for another environment, or for another version of it?"
    )


def _field_names(cls: type) -> set[str]:
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        return set(cls.model_fields)
    if dataclasses.is_dataclass(cls):
        return {field.name for field in dataclasses.fields(cls)}
    return set()
