"""From what a person names to an application: a module, a file, a directory, a bundled environment."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from envtorch.compat import activate_for_serving
from envtorch.errors import ConfigurationError
from envtorch.targets.application import application_of
from envtorch.targets.author_import import attribute_of, environments_in, import_module, unfinished_in
from envtorch.targets.directory_apps import load_directory

__all__ = ["Target", "bundled_environments", "find_target", "function_named", "load_app"]


@dataclass(frozen=True, slots=True)
class Target:
    """Something to serve, found but not yet loaded."""

    name: str
    """As it was named."""
    description: str
    """Which thing of that name it is, for people."""
    load: Callable[[], Any]
    """Import it and give its application; OpenEnv's import names work meanwhile and afterwards."""


def load_app(name: str) -> Any:
    """The application that a target names; see `find_target`."""
    return find_target(name).load()


def find_target(name: str) -> Target:
    """What `name` names. Nothing is imported yet.

    `module:name` names an application or an environment, `file.py` and `file.py:name` the same in a file.
    A directory holds an environment written for EnvTorch or OpenEnv. Anything else is the name of a bundled
    environment; a directory of the same name comes first. Raises `ConfigurationError` when there is nothing.
    """
    place, _, attribute = name.partition(":")
    if place.endswith(".py") or (attribute and "/" in place):
        return _file_target(name, Path(place), attribute)
    if attribute:
        return Target(name, name, lambda: _load_module(place, attribute))
    bundled = name.replace("-", "_") if name.replace("-", "_") in bundled_environments() else None
    if Path(name).is_dir():
        return _directory_target(name, bundled)
    if bundled is not None:
        home = f"envtorch.envs.{bundled}.app"
        return Target(name, f"the bundled {bundled}", lambda: _load_module(home, "app"))
    raise _no_such_target(name)


def bundled_environments() -> list[str]:
    """The names of the environments that come with EnvTorch."""
    envs = resources.files("envtorch") / "envs"
    return sorted(entry.name for entry in envs.iterdir() if (entry / "app.py").is_file())


def _no_such_target(name: str) -> ConfigurationError:
    bundled = bundled_environments()
    close = get_close_matches(name, bundled, 1)
    beside = Path(f"{name}.py")
    hint = f"; did you mean {beside}?" if beside.is_file() else f"; did you mean {close[0]}?" if close else ""
    return ConfigurationError(
        f"{name!r} names nothing: it is no directory, no file and no bundled environment{hint}",
        next_step=f"name module:app, module:Environment, a .py file, a directory, or one of: "
        f"{', '.join(bundled)}",
    )


def _directory_target(name: str, bundled: str | None) -> Target:
    directory = Path(name).resolve()
    description = f"the directory {directory}"
    if bundled is not None:
        description += f" (not the bundled {bundled}, which is envtorch.envs.{bundled}.app:app)"

    def load() -> Any:
        activate_for_serving()
        return load_directory(directory)

    return Target(name, description, load)


def _file_target(name: str, path: Path, attribute: str) -> Target:
    if not path.is_file():
        here = sorted(found.name for found in path.parent.glob("*.py"))[:8] if path.parent.is_dir() else []
        listed = f": {path.parent} has {', '.join(here)}" if here else ""
        raise ConfigurationError(
            f"there is no file {path}{listed}", next_step="name a Python file that exists, or a directory"
        )

    def load() -> Any:
        activate_for_serving()
        module = import_file(path.resolve())
        return application_of(attribute_of(module, attribute or _only_name(module)), name)

    return Target(name, f"{attribute} in {path}" if attribute else str(path), load)


def _load_module(module: str, attribute: str) -> Any:
    activate_for_serving()
    return application_of(attribute_of(import_module(module), attribute), f"{module}:{attribute}")


def import_file(path: Path) -> ModuleType:
    """The module in a file, under the file's own name, with its directory on the import path."""
    if not path.stem.isidentifier():
        raise ConfigurationError(
            f"{path.name} cannot be imported under its name", next_step="rename it, as in my_env.py"
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = import_module(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise ConfigurationError(
            f"{path.name} cannot be loaded: Python already has a module called {path.stem!r}",
            next_step="rename the file, as in my_env.py",
        )
    return module


def function_named(name: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `module:name` names. Raises `ConfigurationError` if it is none."""
    place, _, attribute = name.rpartition(":")
    if not place:
        raise ConfigurationError(
            f"{name!r} names no function", next_step="write FILE.py:NAME, or module:NAME"
        )
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise ConfigurationError(f"there is no file {path}", next_step="name a Python file that exists")
        module = import_file(path.resolve())
    else:
        module = import_module(place)
    if not hasattr(module, attribute.partition(".")[0]):
        raise _no_function(module, place, attribute)
    found = attribute_of(module, attribute)
    if not callable(found):
        raise ConfigurationError(f"{name} is not a function", next_step="name a function")
    function: Callable[..., Any] = found
    return function


def _no_function(module: ModuleType, place: str, name: str) -> ConfigurationError:
    names = [
        own
        for own, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    if not names:
        return ConfigurationError(
            f"{place} has no function {name!r}, nor any other", next_step=f"define {name} in {place}"
        )
    return ConfigurationError(
        f"{place} has no function {name!r}: it has {', '.join(names)}",
        next_step=f"name one of them, as {place}:{names[0]}",
    )


def _only_name(module: ModuleType) -> str:
    """What a module without a name in the target serves: its `app`, else its one environment."""
    if hasattr(module, "app"):
        return "app"
    names = environments_in(module)
    if len(names) == 1:
        return names[0]
    file = Path(module.__file__ or module.__name__).name
    if names:
        raise ConfigurationError(
            f"{file} has several environments: {', '.join(names)}",
            next_step=f"say which one, as in {file}:{names[0]}",
        )
    unfinished = unfinished_in(module)
    if unfinished:
        listed = "; ".join(f"{name} lacks {', '.join(missing)}" for name, missing in unfinished.items())
        raise ConfigurationError(
            f"{file} has no environment that can be built: {listed}",
            next_step=f"define {', '.join(next(iter(unfinished.values())))} in {next(iter(unfinished))}",
        )
    raise ConfigurationError(
        f"{file} has no `app` and no environment class",
        next_step="add `app = create_app(MyEnvironment)`, or a class derived from envtorch.Environment",
    )
