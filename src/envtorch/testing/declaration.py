"""What is wrong with an environment's class as it is written, before one is built."""

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

from envtorch.env import Environment, type_arguments
from envtorch.testing.report import Finding
from envtorch.types import Action, Observation, State

__all__ = ["unrelated", "wrong_declaration", "wrong_type_parameters"]

ROLES = (("action", Action), ("observation", Observation), ("state", State))


def wrong_declaration(source: Callable[..., Any]) -> Finding | None:
    """Why no environment can be built of `source`, or none of it be stepped; None for what may work.

    A factory is examined for its arguments only: what it returns is seen when it is called.
    """
    if isinstance(source, type):
        return _unfit(source) or _needs_arguments(source, "__init__") or _wrong_step(source)
    return _needs_arguments(source, "it")


def _unfit(cls: type) -> Finding | None:
    if not issubclass(cls, Environment):
        return Finding(
            "construction", f"{cls.__name__} is not an Environment", "derive it from envtorch.Environment"
        )
    missing = sorted(cls.__abstractmethods__)
    if not missing:
        return None
    kinds = [f"`{name}` {'property' if name == 'state' else 'method'}" for name in missing]
    return Finding(
        "construction",
        f"{cls.__name__} has no {' and no '.join(kinds)}",
        "define what is missing in the class",
    )


def _needs_arguments(source: Callable[..., Any], what: str) -> Finding | None:
    names = _required(source)
    if not names:
        return None
    name = getattr(source, "__name__", type(source).__name__)
    return Finding(
        "construction",
        f"{name} cannot be built: {what} needs {', '.join(map(repr, names))}",
        "give it a default, or serve a factory: a function without arguments that returns the environment",
    )


def _wrong_step(cls: type[Environment[Any, Any, Any]]) -> Finding | None:
    name = "step" if cls.step_async is Environment.step_async else "step_async"
    method = inspect.getattr_static(cls, name)
    if not inspect.isfunction(method):
        return None
    parameters = list(inspect.signature(method).parameters.values())
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    names = _required(method)[1:]
    if len(names) <= 1 and (takes_any or len(parameters) > 1):
        return None
    return Finding(
        "contract",
        f"{name} takes one action; this one takes {', '.join(names) or 'none'}",
        "take the action alone, and read its fields: `def step(self, action)`",
    )


def wrong_type_parameters(cls: type) -> Iterator[Finding]:
    """What `Environment[Act, Obs, State]` says, and the rest of the class contradicts."""
    named = type_arguments(cls, Environment) or ()
    advice = f"write `class {cls.__name__}(Environment[MyAction, MyObservation, MyState])`, in this order"
    for (role, _), given in zip(ROLES, named, strict=False):
        other = next((name for name, base in ROLES if name != role and _is_a(given, base)), None)
        if other is not None:
            message = f"{given.__name__} stands in the place of the {role}, and is {_an(other)} class"
            yield Finding("contract", message, advice)
            return
    action = _hint_of_action(cls)
    if named and unrelated(action, named[0]):
        yield Finding(
            "contract",
            f"step takes a {action.__name__}, and actions are declared as {named[0].__name__}",
            f"name {action.__name__} first in the brackets of Environment, or annotate step with "
            f"{named[0].__name__}",
        )


def unrelated(one: Any, other: Any) -> bool:
    """Whether both are classes, and neither derives from the other. `Any`, a class too, suits every one."""
    if Any in (one, other) or not (isinstance(one, type) and isinstance(other, type)):
        return False
    return not (issubclass(one, other) or issubclass(other, one))


def _is_a(cls: Any, base: type) -> bool:
    return isinstance(cls, type) and issubclass(cls, base)


def _an(role: str) -> str:
    return f"{'a' if role == 'state' else 'an'} {role}"


def _hint_of_action(cls: type) -> Any:
    """The class in the annotation of the action that `step` takes; None where there is none."""
    name = "step" if getattr(cls, "step_async", None) is Environment.step_async else "step_async"
    try:
        hints = typing.get_type_hints(getattr(cls, name, None))
    except (NameError, TypeError, AttributeError):
        return None
    return next((hint for parameter, hint in hints.items() if parameter != "return"), None)


def _required(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that a call must give; none where the signature is not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
