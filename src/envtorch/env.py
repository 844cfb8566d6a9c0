"""What an environment author writes: `Environment`, and the hooks around it.

`EnvSpec` is the one value that server and client must agree on: which classes travel.
"""

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, Protocol, Self, get_args, get_origin, runtime_checkable

from envtorch.batch_actions import Actions
from envtorch.errors import ConfigurationError
from envtorch.types import ActT, EnvironmentMetadata, ObsT, State, StateT, Tool

__all__ = [
    "EnvSpec",
    "Environment",
    "EnvironmentSource",
    "Rubric",
    "TaskFinder",
    "TaskProvider",
    "ToolProvider",
    "ToolSteps",
    "Transform",
    "load_object",
    "type_arguments",
]


class Transform(ABC, Generic[ObsT]):
    """Rewrites an observation before the agent sees it: adds a reward, hides a field."""

    @abstractmethod
    def __call__(self, observation: ObsT) -> ObsT: ...


class Rubric(Protocol):
    """Scores what just happened. A plain function `(action, observation) -> float` will do."""

    def __call__(self, action: Any, observation: Any, /) -> Any: ...


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """An environment: `reset` begins an episode, `step` takes an action, `state` tells where it stands.

    `reset` and `step` may be plain or `async` methods, and take any of these keywords they care for:
    `reset(seed, episode_id, **options)` and `step(action, timeout_s, request_id, episode_id)`.
    The `reset_async` / `step_async` spelling is honoured too, and preferred where both exist.

    A plain environment lives on a thread of its own, always the same one. An `async` one lives on the
    server's event loop. Neither is ever called twice at once.

    A session is forked by `copy.deepcopy` of its environment. One that holds what cannot be copied so
    defines `fork()`, plain or async, which gives another environment that stands where this one does.
    """

    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False
    """Several objects of this class may live side by side in one process."""

    BLOCKING: ClassVar[bool] = True
    """Set to False on a plain environment whose calls take microseconds: it then runs on the event
    loop, with no thread at all. A call that waits for anything would hold up every session."""

    REQUIRES_RESET: ClassVar[bool] = True
    """A step before the first `reset` is refused with `ResetRequired`, and the environment does not see it.
    Set to False where a new environment takes steps at once."""

    TOOLS_REQUIRE_RESET: ClassVar[bool] = False
    """Set to True where this holds for steps that call a tool, too. Over MCP, and by a client's `call_tool`,
    tools are called without a reset all the same: such an agent has no other way to begin."""

    DETERMINISTIC: ClassVar[bool | None] = None
    """Whether the same reset options and actions give the same observations, in any process. `check_env`
    measures it. A client with `recover="replay"` refuses an environment that says False."""

    DEFAULT_CLASSES: ClassVar[tuple[type, type] | None] = None
    """The action and observation classes of a subclass that names none itself."""

    transform: Transform[ObsT] | None = None
    rubric: Rubric | None = None

    def __init__(self, transform: Transform[ObsT] | None = None, rubric: Rubric | None = None) -> None:
        self.transform = transform
        self.rubric = rubric

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> ObsT | Awaitable[ObsT]:
        """Begin an episode; give the first observation."""

    @abstractmethod
    def step(self, action: ActT, *args: Any, **kwargs: Any) -> ObsT | Awaitable[ObsT]:
        """Take one action; give what the agent sees next."""

    async def reset_async(self, *args: Any, **kwargs: Any) -> ObsT:
        """`reset`, for whoever awaits. Override it, and a server prefers it to `reset`."""
        given: Any = self.reset(*args, **kwargs)
        observation: ObsT = await given if isinstance(given, Awaitable) else given
        return observation

    async def step_async(self, action: ActT, *args: Any, **kwargs: Any) -> ObsT:
        """`step`, for whoever awaits. Override it, and a server prefers it to `step`."""
        given: Any = self.step(action, *args, **kwargs)
        observation: ObsT = await given if isinstance(given, Awaitable) else given
        return observation

    @classmethod
    def step_many(cls, environments: Sequence[Any], actions: Actions[ActT]) -> Any:
        """Take one action in each of several environments, and give what each agent sees next.

        Override it, as a classmethod, where many steps cost less than as many times one: arithmetic on
        arrays, a model or a judge that takes a batch. The answer is a list of observations, or a column for
        each of their fields, by name. It must be what `step` would have answered each of them, which
        `check_env` looks at: any of them may be stepped alone at any time. What it raises is the failure of
        all its steps.

        A server calls it for the sessions that a `VectorEnv` steps together, where environments live on its
        event loop: because they await, or because `BLOCKING` is False.
        """
        return [environment.step(action) for environment, action in zip(environments, actions, strict=True)]

    @property
    @abstractmethod
    def state(self) -> StateT:
        """Where the episode stands."""

    def close(self) -> Awaitable[None] | None:
        """Let go of what the environment holds. Called once, where the environment lives."""
        return None

    def get_metadata(self) -> EnvironmentMetadata:
        """What the server tells of this environment."""
        name = type(self).__name__
        return EnvironmentMetadata(name=name, description=f"{name} environment", version="1.0.0")

    def render_web(self, observation: dict[str, Any]) -> str | None:
        """HTML that draws an observation on the web page; None where there is nothing to draw.

        The observation is as it travels, with `reward` and `done` in it. The HTML is put on the page as it
        is: escape what an agent wrote.
        """
        return None

    def web_actions(self, observation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Actions that the web page offers as buttons, each with its label: the legal moves of a game."""
        return []

    def _apply_transform(self, observation: ObsT) -> ObsT:
        return observation if self.transform is None else self.transform(observation)

    def _apply_rubric(self, action: ActT, observation: ObsT) -> float:
        return 0.0 if self.rubric is None else float(self.rubric(action, observation))

    async def _apply_rubric_async(self, action: ActT, observation: ObsT) -> float:
        score = 0.0 if self.rubric is None else self.rubric(action, observation)
        return float(await score if isinstance(score, Awaitable) else score)

    def _reset_rubric(self) -> None:
        reset = getattr(self.rubric, "reset", None)
        if reset is not None:
            reset()

    async def _reset_rubric_async(self) -> None:
        reset = getattr(self.rubric, "reset_async", None) or getattr(self.rubric, "reset", None)
        done = reset() if reset is not None else None
        if isinstance(done, Awaitable):
            await done


@runtime_checkable
class TaskProvider(Protocol):
    """An environment that has tasks, or what an environment has as its attribute `tasks`.

    Each method may be async, and must work before any `reset`. `envtorch.tasks.TaskSet` is one.
    """

    def list_splits(self) -> Any: ...
    def list_tasks(self, split: str) -> Any: ...
    def num_tasks(self, split: str) -> Any: ...
    def get_task(self, split: str, index: int) -> Any: ...
    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> Any: ...


@runtime_checkable
class TaskFinder(Protocol):
    """An environment's `tasks` that know what `reset(task=...)` means."""

    def find_task(self, given: Any) -> Any:
        """The task that a caller named. Raises `InvalidAction` when there is none."""


@runtime_checkable
class ToolProvider(Protocol):
    """An environment whose tools an agent may call through MCP. Both methods may be async."""

    def list_tools(self) -> Iterable[Tool] | Awaitable[Iterable[Tool]]: ...
    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any: ...


@runtime_checkable
class ToolSteps(Protocol):
    """An environment whose `step` takes tool actions, and which can tell its tools without a step."""

    def describe_tools(self) -> Iterable[Tool] | Awaitable[Iterable[Tool]]: ...


EnvironmentSource = Callable[[], Environment[Any, Any, Any]] | Environment[Any, Any, Any] | str
"""Where environments come from: a class, a factory, one shared instance, or `"module:name"`."""


@dataclass(frozen=True, slots=True)
class EnvSpec(Generic[ActT, ObsT, StateT]):
    """The classes that travel between an environment and its clients."""

    action: type[ActT]
    observation: type[ObsT]
    state: type[StateT]
    reset_observation: type[Any] | None = None
    name: str = "environment"
    requires_reset: bool = True
    """Whether a step before the first `reset` is refused."""
    deterministic: bool | None = None
    """What the environment says about playing an episode again."""
    takes_seed: bool = False
    """Whether `reset` has a parameter `seed` for whole numbers."""
    has_tool_steps: bool = False
    """Whether calls of tools are actions, beside those of the class above (`ToolSteps`)."""

    @classmethod
    def of(
        cls,
        environment: object,
        *,
        action: type | None = None,
        observation: type | None = None,
        state: type | None = None,
        reset_observation: type | None = None,
        name: str | None = None,
    ) -> Self:
        """The spec of an environment class, factory or instance.

        What is not given is read from `Environment[Act, Obs, State]`, then from the annotations of
        `step` and `state`.
        """
        source = environment if callable(environment) else type(environment)
        declared = _declared_types(source) if isinstance(source, type) else _Declared()
        action = action or declared.action
        observation = observation or declared.observation
        if action is None or observation is None:
            advice = f"write `class {_name_of(source)}(Environment[MyAction, MyObservation, MyState])`"
            raise ConfigurationError(
                f"{_name_of(source)} does not say which action and observation classes it uses: {advice}, "
                "or pass both classes",
                next_step=f"{advice}, with your own three classes",
            )
        return cls(
            action=action,
            observation=observation,
            state=state or declared.state or State,
            reset_observation=reset_observation,
            name=name or _name_of(source),
            requires_reset=bool(getattr(source, "REQUIRES_RESET", True)),
            deterministic=getattr(source, "DETERMINISTIC", None),
            takes_seed=isinstance(source, type) and _takes_seed(source),
        )


@dataclass(frozen=True, slots=True)
class _Declared:
    action: type | None = None
    observation: type | None = None
    state: type | None = None


def _declared_types(environment: type) -> _Declared:
    hints = _hints(getattr(environment, "step", None))
    state = getattr(environment, "state", None)
    hinted = (
        next((hint for name, hint in hints.items() if name != "return"), None),
        hints.get("return"),
        _hints(state.fget if isinstance(state, property) else state).get("return"),
    )
    arguments = type_arguments(environment, Environment) or (None, None, None)
    defaults = (*(getattr(environment, "DEFAULT_CLASSES", None) or (None, None)), None)
    named = zip(arguments, hinted, defaults, strict=True)
    return _Declared(*(_a_class(a) or _a_class(h) or d for a, h, d in named))


def _takes_seed(environment: type) -> bool:
    own = getattr(environment, "reset_async", None)
    is_written = own is not None and own is not Environment.reset_async
    reset = own if is_written else getattr(environment, "reset", None)
    try:
        parameters = inspect.signature(reset).parameters if callable(reset) else {}
    except (TypeError, ValueError):
        return False
    return "seed" in parameters and _hints(reset).get("seed", int) in (int, int | None, Any)


def _a_class(hint: object) -> type | None:
    """A hint that names a class; `Any` and `object` name none."""
    return hint if isinstance(hint, type) and hint not in (Any, object) else None


def _hints(function: object) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}  # annotations that cannot be resolved say nothing


def _name_of(source: object) -> str:
    return getattr(source, "__name__", None) or type(source).__name__


def type_arguments(cls: type, generic: type) -> tuple[Any, ...] | None:
    """What `cls` puts in the brackets of `generic`, however many classes lie between them."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if origin is generic:
            return get_args(base)
        inherited = type_arguments(origin or base, generic) if isinstance(origin or base, type) else None
        if inherited is not None:
            parameters = getattr(origin, "__parameters__", ())
            values = dict(zip(parameters, get_args(base), strict=False))
            return tuple(values.get(argument, argument) for argument in inherited)
    for parent in cls.__bases__:
        if parent is not generic and issubclass(parent, generic):
            return type_arguments(parent, generic)
    return None


def load_object(path: str) -> Any:
    """The object named `"package.module:attribute"`."""
    module, separator, attribute = path.partition(":")
    if not (module and separator and attribute):
        raise ConfigurationError(f"{path!r} names nothing: write it as 'package.module:attribute'")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name and not module.startswith(missing.name):
            raise  # the module is there; something it imports is not
        raise ConfigurationError(f"there is no module {module!r} to load {attribute!r} from") from missing
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(f"module {module!r} has no {attribute!r}") from None
    return found
