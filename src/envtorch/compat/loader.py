"""From what a person names to an application: a module, a directory, an environment of ours."""

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from envtorch.compat import activate
from envtorch.compat.manifest import app_candidates, read_manifest
from envtorch.env import Environment, load_object
from envtorch.errors import ConfigurationError
from envtorch.server import create_app

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["load_app"]


def load_app(target: str) -> Any:
    """The application that `target` names.

    `module:app`, `module:Environment`, a directory with an environment written for EnvTorch or OpenEnv,
    or the name of a bundled environment. OpenEnv's import names are served meanwhile and afterwards.
    """
    activate()
    if ":" in target:
        return _application(load_object(target), target)
    if Path(target).is_dir():
        return _load_directory(Path(target).resolve())
    bundled = f"envtorch.envs.{target.replace('-', '_')}"
    if target.replace("-", "_").isidentifier() and importlib.util.find_spec(bundled):
        return _application(load_object(f"{bundled}.app:app"), target)
    raise ConfigurationError(
        f"{target!r} names nothing: it is neither 'module:app', nor a directory, nor a bundled environment"
    )


def _application(found: Any, target: str) -> Any:
    if isinstance(found, ModuleType):
        raise ConfigurationError(f"{target!r} is a module: name what is in it, as 'module:app'")
    if isinstance(found, Environment) or (isinstance(found, type) and issubclass(found, Environment)):
        return create_app(found)
    return found


def _load_directory(directory: Path) -> Any:
    manifest = read_manifest(directory)
    package = _package_name(directory, manifest)
    _make_importable(directory, package)
    tried: list[str] = []
    for candidate in app_candidates(manifest):
        if not _exists(candidate.partition(":")[0], directory):
            continue
        for name in (candidate, f"{package}.{candidate}"):
            module, _, attribute = name.partition(":")
            try:
                return _app_in(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                tried.append(f"{name}: {error!r}")
                if isinstance(error, ModuleNotFoundError) and _is_foreign(error, directory):
                    raise  # a package that is simply not installed: no other guess will help
    reasons = "; ".join(tried) or "there is no server/app.py or app.py"
    raise ConfigurationError(f"no application found in {directory}: {reasons}")


def _package_name(directory: Path, manifest: dict[str, str]) -> str:
    """What the environment's own modules call their package."""
    project = directory / "pyproject.toml"
    if project.is_file():
        try:
            tool = tomllib.loads(project.read_text(encoding="utf-8", errors="replace")).get("tool", {})
        except tomllib.TOMLDecodeError:
            tool = {}
        mapped = tool.get("setuptools", {}).get("package-dir", {})
        for name, place in mapped.items() if isinstance(mapped, dict) else ():
            if name and place in (".", "./") and "." not in name:
                return str(name)
    return directory.name if directory.name.isidentifier() else manifest.get("name", "environment")


def _make_importable(directory: Path, package: str) -> None:
    """Let `server.app` and `package.server.app` both be found, as a checkout and as an installed package."""
    for place in (str(directory.parent), str(directory)):
        if place not in sys.path:
            sys.path.insert(0, place)
    if not package.isidentifier() or importlib.util.find_spec(package) is not None:
        return
    initial = directory / "__init__.py"
    if initial.is_file():
        spec = importlib.util.spec_from_file_location(
            package, initial, submodule_search_locations=[str(directory)]
        )
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[package] = module
            spec.loader.exec_module(module)


def _exists(module: str, directory: Path) -> bool:
    place = directory.joinpath(*module.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def _is_foreign(error: ModuleNotFoundError, directory: Path) -> bool:
    root = (error.name or "").partition(".")[0]
    return bool(root) and root != directory.name and not any(directory.glob(f"{root}*"))


def _app_in(module: ModuleType, attribute: str) -> Any:
    """The application in a module: by its name, or the one that its `main()` would run."""
    found = getattr(module, attribute, None)
    if found is not None:
        return _application(found, f"{module.__name__}:{attribute}")
    main = getattr(module, "main", None)
    if not callable(main):
        raise AttributeError(f"{module.__name__} has neither {attribute!r} nor main()")
    with _captured_runs() as apps:
        main()
    if not apps:
        raise AttributeError(f"{module.__name__}.main() runs no application")
    app = apps[0]
    return load_object(app) if isinstance(app, str) else app


@contextmanager
def _captured_runs() -> Iterator["list[FastAPI | str]"]:
    """The applications given to `uvicorn.run` inside the block, which are not run."""
    import uvicorn  # here, because uvicorn's command line comes with it, and a server has no use for that

    captured: list[FastAPI | str] = []
    original, arguments = uvicorn.run, sys.argv
    uvicorn.run = lambda app, *_, **__: captured.append(app)
    sys.argv = sys.argv[:1]  # an author's main() reads its own options, and these are not for it
    try:
        yield captured
    finally:
        uvicorn.run, sys.argv = original, arguments
