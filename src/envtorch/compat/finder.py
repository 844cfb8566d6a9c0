"""The import finder: serves the modules of the table, each a view onto our own."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from envtorch.compat.table import MIRRORS, TABLE
from envtorch.errors import MissingExtra

__all__ = ["AliasFinder", "AliasModule", "canonical"]


class AliasModule(ModuleType):
    """A module with nothing of its own: names are looked up in our modules, and set there.

    Setting goes through, so that a test which replaces `openenv.core.llm_client.AsyncOpenAI` replaces
    what our code calls. Nothing is imported before a name of it is asked for.
    """

    def __getattr__(self, name: str) -> Any:
        child = f"{self.__name__}.{name}"
        if child in TABLE:
            return importlib.import_module(child)
        if name == "__all__":  # `import *` takes what can be had: extras need not be installed
            return [name for name in self.__dir__() if self._can_be_had(name)]
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        module, attribute = self._home(name)
        return getattr(module, attribute)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, ModuleType):
            super().__setattr__(name, value)
            return
        try:
            taken = self._taken_from
            module, attribute = taken.pop(name) if name in taken else self._home(name)
        except AttributeError:
            super().__setattr__(name, value)
        else:
            setattr(module, attribute, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
            return
        module, attribute = self._taken_from[name] = self._home(name)
        delattr(module, attribute)

    @property
    def _taken_from(self) -> dict[str, tuple[ModuleType, str]]:
        """Where a deleted name was, so that it can be put back: a patch ends by deleting, then setting."""
        taken: dict[str, tuple[ModuleType, str]] = self.__dict__.setdefault("__taken__", {})
        return taken

    def __dir__(self) -> list[str]:
        names: set[str] = set()
        for source in TABLE[self.__name__]:
            old, separator, _ = source.partition("=")
            names |= {old} if separator else set(getattr(importlib.import_module(source), "__all__", ()))
        return sorted(names)

    def _can_be_had(self, name: str) -> bool:
        try:
            return hasattr(self, name)
        except MissingExtra:
            return False

    def _home(self, name: str) -> tuple[ModuleType, str]:
        """The module of ours that has this name, and what it is called there."""
        for source in TABLE[self.__name__]:
            old, separator, home = source.partition("=")
            if separator:
                if old == name:
                    module, _, attribute = home.partition(":")
                    return importlib.import_module(module), attribute
                continue
            home_module = importlib.import_module(source)
            if hasattr(home_module, name):
                return home_module, name
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def canonical(name: str) -> str:
    """An old module's name in the tree of `openenv`: `openenv_core.utils` is `openenv.core.utils`."""
    root, _, rest = name.partition(".")
    home = MIRRORS.get(root, root)
    return f"{home}.{rest}" if rest else home


class AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds old module names below the given roots."""

    def __init__(self, roots: Iterable[str]) -> None:
        self.roots = frozenset(roots)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self.roots or canonical(fullname) not in TABLE:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin="envtorch.compat", is_package=True)
        spec.submodule_search_locations = []
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return AliasModule(spec.name, f"`{spec.name}`, served by EnvTorch.")

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if canonical(name) != name:  # one tree under several names: the very same module
            sys.modules[name] = importlib.import_module(canonical(name))
