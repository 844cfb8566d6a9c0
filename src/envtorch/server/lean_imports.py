"""What a server's dependencies would load and never use, left until somebody does use it.

Imported before everything else in this package. Whoever has imported one of these packages before us has all of
it already, and nothing is changed.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["leave_unopened", "models_built_when_used"]

UNOPENED: Mapping[str, Mapping[str, str]] = {
    "email_validator": {},  # FastAPI asks whether it is there
    "html": {},  # Starlette's page for errors, in debug mode
    "picows": {},  # its `__init__` is for those who connect and listen with it: TLS, proxies, transports
    "uvicorn": {"Config": "uvicorn.config"},  # its `__init__` is the command line: click, reload, processes
}
"""Packages whose modules a server uses, but not what their `__init__` loads. With each, the names of it that
its own modules ask for, and where those are at home."""


class _Unopened:
    """A package that runs its `__init__` when it is asked for a name that it does not have yet."""

    def __init__(self, spec: ModuleSpec, homes: Mapping[str, str]) -> None:
        self.module = module_from_spec(spec)
        self._spec = spec
        self._homes = homes
        self._turn = RLock()
        self._is_opening = False

    def __call__(self, name: str) -> Any:
        """The package's own `__getattr__`, which Python calls for names that are not there."""
        if name in self._homes:
            return getattr(import_module(self._homes[name]), name)
        with self._turn:
            if not self._is_opening:
                self._is_opening = True
                assert self._spec.loader is not None
                self._spec.loader.exec_module(self.module)
                if vars(self.module).get("__getattr__") is self:
                    del self.module.__getattr__
        try:
            return vars(self.module)[name]
        except KeyError:
            raise AttributeError(f"module {self._spec.name!r} has no attribute {name!r}") from None


def leave_unopened(name: str, homes: Mapping[str, str]) -> None:
    """Have the package there, and its modules with it, without what its `__init__` does."""
    spec = find_spec(name) if name not in sys.modules else None
    if spec is None:
        return
    unopened = _Unopened(spec, homes)
    unopened.module.__getattr__ = unopened  # type: ignore[method-assign]
    sys.modules[name] = unopened.module


@contextmanager
def models_built_when_used() -> Iterator[None]:
    """Have pydantic build the validators of classes that are defined meanwhile when they are first used."""
    before = BaseModel.model_config
    BaseModel.model_config = ConfigDict(defer_build=True)
    try:
        yield
    finally:
        BaseModel.model_config = before


for package, homes in UNOPENED.items():
    leave_unopened(package, homes)
if "fastapi" not in sys.modules:
    with models_built_when_used():  # forty classes, for a document that most servers are never asked for
        import_module("fastapi")
