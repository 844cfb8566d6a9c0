"""The application in a directory that holds an environment written for EnvTorch or OpenEnv."""

import importlib
import importlib.util
import sys
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from envtorch.compat.manifest import app_candidates, read_manifest
from envtorch.env import load_object
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.targets.application import application_of
from envtorch.targets.author_import import failure_of

__all__ = ["load_directory"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an environment's modules are."""

    directory: Path
    package: str
    """What the environment's own modules call the package that the directory is."""
    candidates: tuple[str, ...]
    """Where the application may be, best guess first, each as `module:attribute` below a root."""

    @property
    def initial(self) -> Path:
        return self.directory / "__init__.py"

    @property
    def roots(self) -> list[Path]:
        """The directories that modules are imported from."""
        source = self.directory / "src"
        return [self.directory, source] if source.is_dir() else [self.directory]

    def names(self) -> Iterator[str]:
        """The names under which the application may be imported, for candidates whose file exists."""
        for candidate in self.candidates:
            for root in self.roots:
                if _is_module(root, candidate):
                    yield candidate
                    if root == self.directory and self.package.isidentifier():
                        yield f"{self.package}.{candidate}"
            inner = candidate.removeprefix(f"{self.package}.")
            if inner != candidate and _is_module(self.directory, inner):
                yield inner
                yield candidate
        for candidate in self.candidates:
            for root in self.roots:
                for package in _packages_in(root):
                    if _is_module(root / package, candidate):
                        yield f"{package}.{candidate}"

    def owns(self, module: str) -> bool:
        """Whether a module of that name would be the environment's own, and not an installed package."""
        name = module.partition(".")[0]
        places = [*self.roots, self.directory / "server"]
        return name == self.package or any(
            _is_module(place, name) or (place / name).is_dir() for place in places
        )


def load_directory(directory: Path) -> Any:
    """The application in a directory. Raises `ConfigurationError` when there is none."""
    layout = _layout_of(directory)
    for place in (str(directory.parent), *(str(root) for root in reversed(layout.roots))):
        if place not in sys.path:
            sys.path.insert(0, place)
    failures: list[tuple[str, BaseException]] = []
    for name in dict.fromkeys(layout.names()):
        try:
            return _load(name, layout)
        except EnvTorchError:
            raise  # an extra that is missing, or options that contradict each other: no other guess will help
        except (ImportError, _NoApplication) as error:
            if isinstance(error, ModuleNotFoundError) and not layout.owns(error.name or layout.package):
                raise failure_of(error, f"the environment in {directory.name}") from error
            failures.append((name, error))
        except (Exception, SystemExit) as error:
            raise failure_of(error, f"the environment in {directory.name}") from error
    raise _nothing_found(directory, failures)


def _nothing_found(directory: Path, failures: list[tuple[str, BaseException]]) -> EnvTorchError:
    if not failures:
        modules = sorted(path.name for path in directory.glob("*.py") if path.name != "__init__.py")
        has = f"it has {', '.join(modules[:5])}" if modules else "it has no Python files"
        first = f"name the file, as in {directory.name}/{modules[0]}, or " if modules else ""
        return ConfigurationError(
            f"no application found in the directory {directory}: there is no server/app.py or app.py, and no "
            f"openenv.yaml names one; {has}",
            next_step=f"{first}name the application in openenv.yaml (`app: server.app:app`); "
            "`envtorch new NAME` writes a project to start from",
        )
    telling = [one for one in failures if "attempted relative import" not in str(one[1])] or failures
    name, error = telling[-1]
    if isinstance(error, _NoApplication):
        return ConfigurationError(
            f"no application found in {directory}: {error}",
            next_step="add `app = create_app(MyEnvironment)` to that module",
        )
    return failure_of(error, f"the application {name} in {directory}")


def _layout_of(directory: Path) -> Layout:
    manifest = read_manifest(directory)
    return Layout(directory, _package_name(directory, manifest), tuple(app_candidates(manifest)))


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


def _is_module(root: Path, module: str) -> bool:
    """Whether `module`, or the module of `module:attribute`, is a file below `root`."""
    place = root.joinpath(*module.partition(":")[0].split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def _packages_in(root: Path) -> list[str]:
    if not root.is_dir():
        return []
    return sorted(
        entry.name
        for entry in root.iterdir()
        if entry.is_dir() and entry.name.isidentifier() and entry.name not in {"src", "tests", "server"}
    )


def _load(name: str, layout: Layout) -> Any:
    """The application of that name; the directory's own `__init__.py` is executed only where it is needed.

    It is needed when the environment's modules import from the package that the directory is. Where it
    fails, the package is made without it: many an `__init__.py` only imports a client for its users.
    """
    try:
        return _import(name)
    except (Exception, SystemExit) as error:
        if not _concerns_package(error, layout):
            raise
        failed = error
    if isinstance(failed, ModuleNotFoundError) and layout.initial.is_file():
        try:
            _execute_package(layout)
            return _import(name)
        except (Exception, SystemExit) as error:
            if not _concerns_package(error, layout):
                raise
            failed = error
    _add_bare_package(layout)
    try:
        return _import(name)
    except ImportError as error:
        if error.name == layout.package:
            raise failed from None  # what its `__init__.py` would have brought is needed
        raise


def _concerns_package(error: BaseException, layout: Layout) -> bool:
    """Whether the package that the directory is was not found, or failed in its `__init__.py`."""
    if isinstance(error, ModuleNotFoundError) and error.name == layout.package:
        return True
    frames = traceback.extract_tb(error.__traceback__)
    initial = str(layout.initial)
    at = error.filename if isinstance(error, SyntaxError) else None
    return initial == at or any(frame.filename == initial for frame in frames)


def _execute_package(layout: Layout) -> None:
    """Import the directory as the package that its modules know, whatever the directory is called."""
    spec = importlib.util.spec_from_file_location(
        layout.package, layout.initial, submodule_search_locations=[str(layout.directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[layout.package] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[layout.package]
        raise


def _add_bare_package(layout: Layout) -> None:
    module = ModuleType(layout.package)
    module.__path__ = [str(layout.directory)]
    sys.modules[layout.package] = module


class _NoApplication(Exception):
    """A module was imported, and has no application."""


def _import(name: str) -> Any:
    """The application in a module: by its name, or the one that its `main()` would run."""
    path, _, attribute = name.partition(":")
    module = importlib.import_module(path)
    found = getattr(module, attribute, None)
    if found is not None:
        return application_of(found, name)
    main = getattr(module, "main", None)
    if not callable(main):
        raise _NoApplication(f"{path} has neither {attribute!r} nor main()")
    with _captured_runs() as apps:
        main()
    if not apps:
        raise _NoApplication(f"{path}.main() runs no application")
    app = apps[0]
    return load_object(app) if isinstance(app, str) else app


@contextmanager
def _captured_runs() -> Iterator[list[Any]]:
    """The applications given to `uvicorn.run` inside the block, which are not run."""
    import uvicorn  # here, because uvicorn's command line comes with it, and a server has no use for that

    captured: list[Any] = []
    original, arguments = uvicorn.run, sys.argv
    uvicorn.run = lambda app, *_, **__: captured.append(app)
    sys.argv = sys.argv[:1]  # an author's main() reads its own options, and these are not for it
    try:
        yield captured
    finally:
        uvicorn.run, sys.argv = original, arguments
