"""Translates between a client's values and the payloads that travel, and asks with them.

Blocking and async clients share both: a request is a flow that yields an `Ask` and is sent its `Answer`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic

from pydantic import BaseModel

from envtorch.env import EnvSpec, type_arguments
from envtorch.errors import InvalidAction
from envtorch.protocol.arguments import shown
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.requests import Asking
from envtorch.protocol.wire import Ask
from envtorch.types import ActT, ObsT, StateT, StepResult

__all__ = ["Translation", "ask_reset", "ask_state", "ask_step", "encode_options"]


class Translation(Generic[ActT, ObsT, StateT]):
    """Encodes actions and decodes results, with defaults derived from the type parameters.

    `class MyEnv(EnvClient[MyAction, MyObservation, MyState]): ...` needs no more than that. A subclass
    may define `_step_payload`, `_parse_result` or `_parse_state` to translate in its own way.
    """

    _codecs: ClassVar[dict[type, Codec[Any, Any, Any]]] = {}

    environment: ClassVar[str | None] = None
    """Where the environment itself is, as `"module:Class"`; what `local()` runs by default."""

    def __init_subclass__(cls, *, environment: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if environment is not None:
            cls.environment = environment

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """An action as the server's JSON object."""
        payload: dict[str, Any] = (
            action.model_dump(mode="json") if isinstance(action, BaseModel) else action  # type: ignore[assignment]
        )
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """The result in a reply to `reset` or `step`."""
        return self._codec.decode_result(payload)

    def _parse_state(self, payload: dict[str, Any]) -> StateT:
        """The state in a reply to `state`."""
        return self._codec.decode_state(payload)

    # What the flows call.

    def encode_action(self, action: ActT, format: Format = JSON) -> bytes:
        if type(self)._step_payload is Translation._step_payload:
            encoded = self._codec.encode_action(action, format)  # straight to bytes
        else:
            encoded = encode_value(self._step_payload(action), format, blame=InvalidAction)
        if not format.is_object(encoded):
            known = self._codec.spec.action.__name__
            wanted = "a dictionary" if known == "dict" else f"{known}, or a dictionary of its fields"
            raise InvalidAction(f"an action is {wanted}, not {shown(action)}", wrong_argument="action")
        return encoded

    def encode_actions(self, actions: Sequence[ActT], format: Format = JSON) -> bytes | None:
        """Actions as a list; None when they have to be encoded one by one."""
        if type(self)._step_payload is not Translation._step_payload:
            return None
        return self._codec.encode_actions(actions, format)

    def encode_columns(self, actions: Sequence[ActT], format: Format) -> bytes | None:
        """Actions as columns; None when they have to be encoded one by one."""
        if type(self)._step_payload is not Translation._step_payload:
            return None
        return self._codec.encode_columns(actions, format)

    def parse_fields(
        self, fields: Mapping[str, Any], rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT] | None:
        """The observations in columns; None when they have to be parsed one by one."""
        if type(self)._parse_result is not Translation._parse_result:
            return None
        return self._codec.decode_fields(fields, rewards, dones)

    def parse_observations(
        self, payload: bytes, rewards: Sequence[Any], dones: Sequence[bool]
    ) -> list[ObsT] | None:
        """The observations in a JSON list; None when they have to be parsed one by one."""
        if type(self)._parse_result is not Translation._parse_result:
            return None
        return self._codec.decode_observations(payload, rewards, dones)

    def parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        return self._parse_result(payload)

    def parse_state(self, payload: dict[str, Any]) -> StateT:
        return self._parse_state(payload)

    @cached_property
    def _codec(self) -> Codec[ActT, ObsT, StateT]:
        return self._codec_of_class()

    @classmethod
    def _codec_of_class(cls) -> Codec[ActT, ObsT, StateT]:
        codec = Translation._codecs.get(cls)
        if codec is None:
            codec = Translation._codecs[cls] = Codec(cls.spec())
        return codec

    @classmethod
    def spec(cls) -> EnvSpec[ActT, ObsT, StateT]:
        """The classes this client speaks; a parameter left open is a plain dictionary."""
        arguments = type_arguments(cls, Translation) or (dict, dict, dict)
        action, observation, state = (a if isinstance(a, type) and a is not Any else dict for a in arguments)
        return EnvSpec(action, observation, state, name=cls.__name__)


def encode_options(options: Mapping[str, Any], format: Format) -> bytes:
    """The options of a reset as bytes. Raises `InvalidAction`, also for a seed that is no number: JSON has no
    NaN, and without its seed an episode would be another one."""
    seed = options.get("seed")
    if isinstance(seed, float) and not math.isfinite(seed):
        raise InvalidAction(f"a seed is a whole number, not {shown(seed)}")
    return encode_value(dict(options), format, blame=InvalidAction)


def ask_reset(
    translation: Translation[Any, ObsT, Any], options: Mapping[str, Any], format: Format = JSON
) -> Asking[StepResult[ObsT]]:
    """Begin an episode."""
    answer = yield Ask("reset", encode_options(options, format))
    return translation.parse_result(answer.expect("observation"))


def ask_step(
    translation: Translation[ActT, ObsT, Any], action: ActT, format: Format = JSON
) -> Asking[StepResult[ObsT]]:
    """Take one action."""
    answer = yield Ask("step", translation.encode_action(action, format))
    return translation.parse_result(answer.expect("observation"))


def ask_state(translation: Translation[Any, Any, StateT]) -> Asking[StateT]:
    """Get the state of the episode."""
    answer = yield Ask("state")
    return translation.parse_state(answer.expect("state"))
