"""What a server's dependencies would load and never use, left until somebody does use it.

Imported before everything else in this package. A package that was imported before us is loaded already, and
is left as it is.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from threading import RLock
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["leave_unopened", "models_built_when_used"]

UNOPENED: Mapping[str, Mapping[str, str]] = {
    "aiofastnet": {"Transport": "aiofastnet.transport"},  # picows asks whether a transport is one of its own
    "email_validator": {},  # FastAPI asks whether it is there
    "orjson": {},  # FastAPI asks whether it is there
    "picows": {},  # its `__init__` is for those who connect and listen with it: TLS, proxies, transports
    "uvicorn": {"Config": "uvicorn.config"},  # its `__init__` is the command line: click, reload, processes
}
"""Packages of which a server uses modules, or nothing, but not what their `__init__` loads. With each, the
names that it is asked for all the same, and the homes of those."""


class _Unopened:
    """A package that runs its `__init__` when it is asked for a name that it does not have."""

    def __init__(self, spec: ModuleSpec, homes: Mapping[str, str]) -> None:
        self.module = module_from_spec(spec)
        self._spec = spec
        self._homes = homes
        self._turn = RLock()
        self._is_opening = False

    def __call__(self, name: str) -> Any:
        """The package's `__getattr__`, which Python calls for names that are not there."""
        if name in self._homes:
            return getattr(import_module(self._homes[name]), name)
        with self._turn:
            if self._is_opening:
                raise AttributeError(f"{self._spec.name!r}, which is being imported, has no {name!r} yet")
            if self._is_unopened:
                self._open()
        return getattr(self.module, name)

    @property
    def _is_unopened(self) -> bool:
        return vars(self.module).get("__getattr__") is self

    def _open(self) -> None:
        assert self._spec.loader is not None
        self._is_opening = True
        try:
            self._spec.loader.exec_module(self.module)
        finally:
            self._is_opening = False
        if self._is_unopened:  # it has brought no `__getattr__` of its own
            del self.module.__getattr__


def leave_unopened(name: str, homes: Mapping[str, str]) -> None:
    """Have a package there, and its modules with it, without what its `__init__` does."""
    spec = find_spec(name) if name not in sys.modules else None
    if spec is None:
        return
    # `importlib.util.LazyLoader` would open the package as soon as one of its modules is imported.
    unopened = _Unopened(spec, homes)
    unopened.module.__getattr__ = unopened  # type: ignore[method-assign]
    sys.modules[name] = unopened.module


@contextmanager
def models_built_when_used() -> Iterator[None]:
    """Have pydantic build validators of the classes that are defined meanwhile when they are first used."""
    before = BaseModel.model_config
    BaseModel.model_config = ConfigDict(defer_build=True)
    try:
        yield
    finally:
        BaseModel.model_config = before


for _name, _homes in UNOPENED.items():
    leave_unopened(_name, _homes)
if "fastapi" not in sys.modules:
    with models_built_when_used():  # dozens of classes, for a document that most servers are never asked for
        import_module("fastapi")
