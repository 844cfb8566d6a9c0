"""An environment's methods: how they are called, and which keywords they take. Found once per class."""

import enum
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pydantic import (
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
)
from pydantic_core import ValidationError

from envtorch.batch_actions import Actions
from envtorch.env import Environment
from envtorch.errors import InvalidAction
from envtorch.protocol.messages import invalid

__all__ = ["Binding", "Colour", "Method", "own_step_many"]

StepMany = Callable[[Sequence[Any], Actions[Any]], Any]

USUAL: Mapping[str, Any] = {"seed": int | None, "episode_id": str | None, "timeout_s": float | None}
"""The types of keywords that every environment may take, where its author annotates no other."""


class Colour(enum.Enum):
    """How an environment wants to be called, and therefore where it can live."""

    SYNC = "sync"
    ASYNC = "async"
    MIXED = "mixed"
    """Some of `reset` and `step` block and some are awaited: it needs a loop that it may block."""


class Keyword(NamedTuple):
    """One keyword of a method, and what its values are validated with; None where anything goes."""

    name: str
    adapter: TypeAdapter[Any] | None


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a class of environments, and the keywords it takes."""

    attribute: str
    """What the method is called: `step`, or `step_async` where the author wrote that one."""
    name: str
    is_async: bool
    keywords: Mapping[str, Keyword]
    takes_any: bool

    @classmethod
    def of(cls, environment: object, name: str) -> "Method":
        attribute = f"{name}_async" if _has_own_twin(environment, name) else name
        chosen = getattr(environment, attribute)
        parameters = list(inspect.signature(chosen).parameters.values())
        if name == "step":
            parameters = parameters[1:]  # the action is not ours to name
        hints = _hints(chosen)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return cls(
            attribute=attribute,
            name=name,
            is_async=inspect.iscoroutinefunction(chosen),
            keywords={p.name: Keyword(p.name, _adapter(p, hints)) for p in named},
            takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    def takes(self, keyword: str) -> bool:
        return self.takes_any or keyword in self.keywords

    def accepted(self, options: Mapping[str, Any], *, strict: bool) -> Mapping[str, Any]:
        """The options this method takes, validated. Raises `InvalidAction` for one of the wrong type.

        Unknown ones are dropped where OpenEnv drops them, and an error that names them where we are
        `strict`: a misspelt `seed` must not give an unseeded episode.
        """
        if not options:
            return options
        if strict and not self.takes_any and not self.keywords.keys() >= options.keys():
            unknown = sorted(set(options) - self.keywords.keys())
            known = ", ".join(sorted(self.keywords)) or "no keyword at all"
            raise InvalidAction(
                f"{self.name} does not take {', '.join(map(repr, unknown))}; it takes {known}",
                arguments=unknown,
            )
        return {name: self._valid(name, value) for name, value in options.items() if self.takes(name)}

    def _valid(self, name: str, value: Any) -> Any:
        keyword = self.keywords.get(name)
        adapter = keyword.adapter if keyword is not None else _usual.get(name)
        if adapter is None:
            return value
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise invalid(error, f"{self.name} does not take this {name}") from error


def _adapter(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> TypeAdapter[Any] | None:
    hint = hints.get(parameter.name, USUAL.get(parameter.name, Any))
    if hint is Any or hint is object:
        return None
    if parameter.default is None:
        hint = typing.Optional[hint]  # noqa: UP045, `seed: int = None` is common, and means this
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError, TypeError):
        return _plain_adapter(hint)


def _plain_adapter(hint: Any) -> TypeAdapter[Any] | None:
    """The adapter of a class that has a configuration of its own; None where there is none."""
    try:
        return TypeAdapter(hint)
    except Exception:  # an annotation that pydantic cannot use says nothing
        return None


_usual = {name: TypeAdapter(hint) for name, hint in USUAL.items()}


def _hints(function: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(getattr(function, "__func__", function))
    except Exception:  # annotations that cannot be resolved say nothing
        return {}


def _has_own_twin(environment: object, name: str) -> bool:
    """Whether the author wrote `reset_async` or `step_async`; the inherited one only calls the other."""
    twin = getattr(environment, f"{name}_async", None)
    inherited = getattr(twin, "__func__", None) is getattr(Environment, f"{name}_async")
    return twin is not None and not inherited


def own_step_many(kind: type) -> StepMany | None:
    """How environments of a class step together, where the author wrote that.

    A method of that name which wants an object is something else, and left alone.
    """
    written = next((vars(base)["step_many"] for base in kind.__mro__ if "step_many" in vars(base)), None)
    inherited = vars(Environment)["step_many"]
    if written is inherited or not isinstance(written, classmethod | staticmethod):
        return None
    step_many: StepMany = kind.step_many  # type: ignore[attr-defined]
    return step_many


@dataclass(frozen=True, slots=True)
class Binding:
    """How the environments of one class are called."""

    reset: Method
    step: Method
    step_many: StepMany | None

    @classmethod
    def of(cls, environment: Environment[Any, Any, Any]) -> "Binding":
        """The binding of an environment's class, found once; of an object that has its own methods."""
        kind = type(environment)
        own = getattr(environment, "__dict__", {})
        if _BOUND_NAMES.isdisjoint(own):
            found = _bindings.get(kind)
            if found is None:
                found = _bindings[kind] = cls._found(environment)
            return found
        return cls._found(environment)

    @classmethod
    def _found(cls, environment: Environment[Any, Any, Any]) -> "Binding":
        return cls(
            Method.of(environment, "reset"),
            Method.of(environment, "step"),
            own_step_many(type(environment)),
        )

    @property
    def colour(self) -> Colour:
        match self.reset.is_async, self.step.is_async:
            case True, True:
                return Colour.ASYNC
            case False, False:
                return Colour.SYNC
        return Colour.MIXED


_BOUND_NAMES = frozenset({"reset", "step", "reset_async", "step_async"})
_bindings: "WeakKeyDictionary[type, Binding]" = WeakKeyDictionary()
