"""What there is to know of an environment's methods, found out once and not at every call."""

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envtorch.env import Environment
from envtorch.errors import InvalidAction
from envtorch.together import Actions

__all__ = ["Binding", "Colour", "Method", "own_step_many"]

StepMany = Callable[[Sequence[Any], Actions[Any]], Any]


class Colour(enum.Enum):
    """How an environment wants to be called, and therefore where it can live."""

    SYNC = "sync"
    ASYNC = "async"
    MIXED = "mixed"
    """Some of `reset` and `step` block and some are awaited: it needs a loop that it may block."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method, and the keywords it takes."""

    call: Callable[..., Any]
    name: str
    is_async: bool
    keywords: frozenset[str] | None
    """None when it takes any keyword."""

    @classmethod
    def of(cls, environment: object, name: str) -> "Method":
        chosen = _own_twin(environment, name) or getattr(environment, name)
        parameters = list(inspect.signature(chosen).parameters.values())
        if name == "step":
            parameters = parameters[1:]  # the action is not ours to name
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = (p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        return cls(
            call=chosen,
            name=name,
            is_async=inspect.iscoroutinefunction(chosen),
            keywords=None if takes_any else frozenset(named),
        )

    def takes(self, keyword: str) -> bool:
        return self.keywords is None or keyword in self.keywords

    def accepted(self, options: Mapping[str, Any], *, strict: bool) -> Mapping[str, Any]:
        """The options this method takes.

        The others are dropped where OpenEnv drops them, and an error that names them where we are
        `strict`: a misspelt `seed` must not give an unseeded episode.
        """
        if self.keywords is None or not options or self.keywords.issuperset(options):
            return options
        if strict:
            unknown = sorted(set(options) - self.keywords)
            known = ", ".join(sorted(self.keywords)) or "no keyword at all"
            raise InvalidAction(
                f"{self.name} does not take {', '.join(map(repr, unknown))}; it takes {known}",
                arguments=unknown,
            )
        return {name: value for name, value in options.items() if name in self.keywords}


def _own_twin(environment: object, name: str) -> Callable[..., Any] | None:
    """`reset_async` or `step_async` where the author wrote one; the inherited one only calls the other."""
    twin: Callable[..., Any] | None = getattr(environment, f"{name}_async", None)
    inherited = getattr(twin, "__func__", None) is getattr(Environment, f"{name}_async")
    return None if inherited else twin


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
    """An environment object and how to call it."""

    environment: Environment[Any, Any, Any]
    reset: Method
    step: Method

    @classmethod
    def of(cls, environment: Environment[Any, Any, Any]) -> "Binding":
        return cls(environment, Method.of(environment, "reset"), Method.of(environment, "step"))

    @property
    def colour(self) -> Colour:
        match self.reset.is_async, self.step.is_async:
            case True, True:
                return Colour.ASYNC
            case False, False:
                return Colour.SYNC
        return Colour.MIXED

    def state(self) -> Any:
        """The state; some authors forget the `@property`, and are understood."""
        state = self.environment.state
        return state() if inspect.ismethod(state) else state
