"""The application for what was found under a target's name; what cannot be served is refused here."""

import inspect
from types import ModuleType
from typing import Any

from envtorch.client import EnvClient
from envtorch.env import Environment, EnvSpec
from envtorch.errors import ConfigurationError
from envtorch.server import create_app
from envtorch.targets.author_import import author_errors, environments_in
from envtorch.types import Action, Observation, State

__all__ = ["application_of"]

ASGI_PARAMETERS = 3


def application_of(found: Any, target: str) -> Any:
    """The application that serves `found`. Raises `ConfigurationError` for what is none and makes none."""
    if isinstance(found, Environment):
        return _served(found, target)
    if isinstance(found, type):
        return _served(_environment_class(found, target), target)
    if isinstance(found, ModuleType):
        raise ConfigurationError(
            f"{target} is a module", next_step=f"name what to serve in it, as {found.__name__}:app"
        )
    if inspect.isfunction(found):
        return _from_function(found, target)
    if not callable(found):
        raise ConfigurationError(
            f"{target} is a value of type {type(found).__name__}, which cannot be served",
            next_step="name an application (`create_app(...)`) or an Environment class",
        )
    return found


def _served(environment: Any, target: str) -> Any:
    with author_errors(target):
        return create_app(environment)


def _environment_class(found: type, target: str) -> type[Environment[Any, Any, Any]]:
    if not issubclass(found, Environment):
        raise ConfigurationError(
            f"{target} is {_kind_of(found)}, not an environment", next_step=_instead_of(found)
        )
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise ConfigurationError(
            f"{target} is an abstract class: it does not define {', '.join(missing)}",
            next_step="define them, or name a class that does",
        )
    needed = _needed_arguments(found)
    if needed:
        raise ConfigurationError(
            f"{target} cannot be built without arguments: its constructor needs {', '.join(needed)!r}",
            next_step="give them defaults, or name a function that returns the environment",
        )
    return found


def _needed_arguments(function: Any) -> list[str]:
    """The parameters of a callable that have no default."""
    gathered = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in gathered]


def _kind_of(found: type) -> str:
    kinds = {
        "a client class": EnvClient,
        "an action class": Action,
        "an observation class": Observation,
        "a state class": State,
    }
    named = next((kind for kind, base in kinds.items() if issubclass(found, base)), None)
    if named is None and callable(getattr(found, "_step_payload", None)):
        return "a client class"
    return named or "a class that does not derive from Environment"


def _instead_of(found: type) -> str:
    module = inspect.getmodule(found)
    names = environments_in(module) if module is not None else []
    if not names:
        return "name a class that derives from envtorch.Environment"
    return f"serve the environment itself: {found.__module__}:{names[0]}"


def _from_function(found: Any, target: str) -> Any:
    """An ASGI application as it is; of a function without arguments, what it returns."""
    needed = _needed_arguments(found)
    if len(needed) == ASGI_PARAMETERS:
        return found
    if needed:
        raise ConfigurationError(
            f"{target} is a function that needs arguments",
            next_step="name an application, an Environment class, or a function without arguments",
        )
    with author_errors(f"{target}()"):
        made = found()
    if not isinstance(made, Environment):
        return application_of(made, f"{target}()")
    spec: EnvSpec[Any, Any, Any] = EnvSpec.of(type(made))
    return create_app(found, spec.action, spec.observation)
