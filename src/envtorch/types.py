"""The values that travel: actions, observations, state, results, and what a server tells of itself.

Subclass `Action`, `Observation` and `State` as pydantic models, or put `@dataclass` on the subclass;
plain dataclasses and plain pydantic models that inherit from none of them are welcome too.
"""

import dataclasses
from typing import Annotated, Any, Generic, Self, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic._internal._model_construction import ModelMetaclass  # it has no public name
from pydantic.json_schema import SkipJsonSchema, WithJsonSchema
from typing_extensions import TypeVar

__all__ = [
    "ActT",
    "Action",
    "ConcurrencyConfig",
    "EnvironmentMetadata",
    "ObsT",
    "Observation",
    "Scalar",
    "ServerCapacityStatus",
    "SessionInfo",
    "State",
    "StateT",
    "StepResult",
    "Tool",
]

Scalar = bool | int | float
"""What a reward may be. The wire keeps the kind: `True` stays `true`, `1` stays `1`."""

_KINDS_OF_REWARD = {"anyOf": [{"type": kind} for kind in ("boolean", "integer", "number", "null")]}
_Reward = Annotated[float | int | bool | None, WithJsonSchema(_KINDS_OF_REWARD)]
"""`Scalar | None`. A union is tried in order until one fits exactly, and most rewards are floats; the other
way round, this field cost more than any other. The schema has OpenEnv's order."""


@dataclass_transform(kw_only_default=True, field_specifiers=(Field, dataclasses.field))
class _ValueMeta(ModelMetaclass):
    """Lets `@dataclass` decorate a pydantic subclass.

    The decorator writes an `__init__` that knows nothing of pydantic's bookkeeping. Here that one
    method is swapped for one that validates, and takes positional arguments as a dataclass does;
    pydantic's `__eq__` and `__repr__` stay, since they cover inherited fields too.
    """

    def __setattr__(cls, name: str, value: Any) -> None:  # noqa: N805
        if "__dataclass_params__" in cls.__dict__:
            if name in ("__eq__", "__repr__"):
                return
            if name == "__init__":
                value = _dataclass_init
        super().__setattr__(name, value)


def _dataclass_init(self: Any, *args: Any, **values: Any) -> None:
    names = [field.name for field in dataclasses.fields(self) if not field.kw_only]
    if len(args) > len(names):
        raise TypeError(f"{type(self).__name__} takes {len(names)} positional arguments, got {len(args)}")
    BaseModel.__init__(self, **dict(zip(names, args, strict=False)), **values)
    if hasattr(self, "__post_init__"):
        self.__post_init__()


class _Value(BaseModel, metaclass=_ValueMeta):
    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True, protected_namespaces=()
    )


class Action(_Value):
    """What an agent does. Subclass it and add fields."""

    metadata: dict[str, Any] = Field(default_factory=dict, description="Additional metadata for the action")


class Observation(_Value):
    """What an agent sees. Subclass it and add fields.

    `terminated` and `truncated` have Gymnasium's meaning and are optional: an author who sets only
    `done` has said enough. They travel beside the observation, never inside it.
    """

    done: bool = Field(default=False, description="Whether the episode has terminated")
    reward: _Reward = Field(default=None, description="Reward signal from the last action")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Additional metadata for the observation"
    )
    terminated: SkipJsonSchema[bool | None] = Field(default=None, exclude=True)
    truncated: SkipJsonSchema[bool | None] = Field(default=None, exclude=True)


class State(_Value):
    """Where an episode stands. Subclass it and add fields; unknown fields are kept."""

    model_config = ConfigDict(extra="allow")

    episode_id: str | None = Field(default=None, description="Unique identifier for the current episode")
    step_count: NonNegativeInt = Field(default=0, description="Number of steps taken in the current episode")


ActT = TypeVar("ActT", default=Any, contravariant=False)
ObsT = TypeVar("ObsT", default=Any)
StateT = TypeVar("StateT", default=Any)


@dataclasses.dataclass
class StepResult(Generic[ObsT]):
    """What `reset` and `step` give a client.

    `terminated` and `truncated` are always there: a server that knows only `done` is understood as
    `terminated`.
    """

    observation: ObsT
    reward: Scalar | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
    terminated: bool | None = None
    truncated: bool | None = None

    def __post_init__(self) -> None:
        self.truncated = bool(self.truncated)
        if self.terminated is None:
            self.terminated = self.done and not self.truncated
        self.done = self.done or self.terminated or self.truncated


class EnvironmentMetadata(BaseModel):
    """What `GET /metadata` tells of an environment."""

    name: str
    description: str
    readme_content: str | None = None
    version: str | None = None
    author: str | None = None
    documentation_url: str | None = None


class Tool(BaseModel):
    """A tool an agent may call, as MCP describes it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str
    input_schema: dict[str, Any]


class DescribedTool(Tool):
    """A tool with the rest of what MCP can say about it.

    An MCP client is told all of it; OpenEnv's wire has the fields of `Tool` only.
    """

    title: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    icons: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = None


class ConcurrencyConfig(BaseModel):
    """How many sessions a server holds, and how long it keeps one that nobody uses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_concurrent_envs: PositiveInt = 1
    session_timeout: PositiveFloat | None = None
    """Seconds without a call after which a session is closed that no socket holds, such as HTTP's."""
    reconnect_grace: PositiveFloat = 60.0
    """Seconds that a session waits for its client to come back after its socket dropped."""
    max_reconnect_grace: PositiveFloat = 3600.0
    """The most a client may ask for instead."""
    start_timeout: PositiveFloat = 300.0
    """Seconds that an environment's constructor may take."""
    stop_timeout: PositiveFloat = 10.0
    """Seconds that a call may run on once nobody waits for it: its client gave up, or its session ends. An
    isolated environment's process is then killed; on a thread, the session counts as stuck."""


class ServerCapacityStatus(BaseModel):
    """How many sessions there are, and how many there may be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    active_sessions: NonNegativeInt
    max_sessions: PositiveInt

    @property
    def available_slots(self) -> int:
        return self.max_sessions - self.active_sessions

    @property
    def is_at_capacity(self) -> bool:
        return self.available_slots == 0

    @classmethod
    def from_counts(cls, active: int, max_sessions: int) -> Self:
        if active > max_sessions:
            raise ValueError(f"{active} active sessions do not fit in {max_sessions}")
        return cls(active_sessions=active, max_sessions=max_sessions)


class SessionInfo(BaseModel):
    """One live session, as an operator sees it. Times are seconds since the epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    session_id: str
    created_at: float
    last_activity_at: float
    step_count: NonNegativeInt = 0
    environment_type: str
