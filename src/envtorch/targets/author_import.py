"""Imports of an author's modules, with errors that name the author's line."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from envtorch.env import Environment
from envtorch.errors import ConfigurationError, EnvTorchError, FactoryFailed
from envtorch.tracebacks import author_line, author_traceback

__all__ = ["attribute_of", "author_errors", "environments_in", "failure_of", "import_module", "unfinished_in"]


@contextmanager
def author_errors(what: str) -> Iterator[None]:
    """Turn what the author's code raises in the block into `FactoryFailed`, with the author's own frames.

    An error of EnvTorch keeps its class and gets the frames as well.
    """
    try:
        yield
    except EnvTorchError as error:
        error.details.setdefault("traceback", author_traceback(error))
        raise
    except (Exception, SystemExit) as error:
        raise failure_of(error, what) from error


def failure_of(error: BaseException, what: str) -> FactoryFailed:
    """`FactoryFailed` for an exception of the author's code."""
    line = author_line(error)
    at = f" ({line})" if line else ""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    reason = f"{type(error).__name__}: {said}".rstrip(": ")
    if isinstance(error, ModuleNotFoundError) and error.name:
        root = error.name.partition(".")[0]
        return FactoryFailed(
            f"{what} needs the module {error.name!r}, which is not installed{at}",
            traceback=author_traceback(error),
            next_step=_how_to_get(root),
        )
    return FactoryFailed(
        f"{what} cannot be loaded: {reason}{at}",
        traceback=author_traceback(error),
        next_step="correct the line that is named, and run the command again",
    )


def _how_to_get(root: str) -> str:
    if root in {"openenv", "openenv_core", "core"}:
        return "neither OpenEnv nor EnvTorch has a module of that name: correct the import"
    return f"install it where envtorch runs (often `pip install {root}`), or correct the import"


def import_module(name: str) -> ModuleType:
    """Import a module. Raises `ConfigurationError` when there is none, `FactoryFailed` when it raises."""
    with author_errors(f"module {name!r}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not is_missing(error, name):
                raise
            raise ConfigurationError(
                f"there is no module {name!r} here",
                next_step="name a module that can be imported from this directory, or a file: ./my_env.py",
            ) from None
        except ImportError:
            sys.modules.pop(name, None)
            raise


def is_missing(error: ModuleNotFoundError, name: str) -> bool:
    """Whether it is the module `name` itself, or a package around it, that was not found."""
    return error.name is not None and (name == error.name or name.startswith(f"{error.name}."))


def attribute_of(module: ModuleType, path: str) -> Any:
    """What `path` names in a module. Raises `ConfigurationError`, which lists what can be served there."""
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(
                f"module {module.__name__!r} has no {path!r}{_listed(module)}",
                next_step=f"name one of them, as {module.__name__}:NAME",
            ) from None
    return found


def _listed(module: ModuleType) -> str:
    names = servable_in(module)
    return f": it has {', '.join(names)}" if names else ", and nothing else that can be served"


def servable_in(module: ModuleType) -> list[str]:
    """The names of applications and environments in a module, applications first."""
    apps = [name for name, value in vars(module).items() if is_application(value)]
    return [*apps, *environments_in(module)]


def environments_in(module: ModuleType) -> list[str]:
    """The names of the environment classes that a module defines and that can be built."""
    return [name for name, missing in _environment_classes(module).items() if not missing]


def unfinished_in(module: ModuleType) -> dict[str, list[str]]:
    """The environment classes that a module defines and that cannot be built, with what each lacks."""
    return {name: missing for name, missing in _environment_classes(module).items() if missing}


def _environment_classes(module: ModuleType) -> dict[str, list[str]]:
    return {
        name: sorted(value.__abstractmethods__)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Environment) and value.__module__ == module.__name__
    }


def is_application(value: object) -> bool:
    """Whether a value is an application made by Starlette or FastAPI."""
    return not isinstance(value, type) and callable(value) and hasattr(value, "routes")
