"""Removing what a killed owner left behind.

Everything a provider makes carries its owner's `OwnerTag`. A sweep removes what belongs to a process
that is certainly dead; what belongs to a living one, or to one on another machine, is left alone. Each
start sweeps its own engine first; `sweep()` sweeps all that can be reached.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from envtorch.errors import EngineUnavailable, MissingExtra
from envtorch.providers.ownership import OWNER_LABEL, OwnerTag

__all__ = ["Swept", "sweep", "sweep_containers", "sweep_directories"]

logger = logging.getLogger(__name__)

DIRECTORY_PREFIX = "envtorch-"


@dataclass(frozen=True, slots=True)
class Swept:
    """One thing that was removed."""

    kind: str
    """`"container"`, `"directory"`, `"pod"`, ..."""

    name: str
    owner: str


def sweep() -> list[Swept]:
    """Remove everything whose owner is dead, on every engine that answers; what was removed.

    An engine that is not there, or whose package is not installed, has nothing to sweep.
    """
    swept = sweep_directories()
    engines = (("docker", "sweep_engine"), ("kubernetes", "sweep_cluster"), ("daytona", "sweep_daytona"))
    for module, function in engines:
        with suppress(MissingExtra, EngineUnavailable):
            swept += getattr(import_module(f"envtorch.providers.{module}"), function)()
    return swept


def sweep_containers(client: Any) -> list[Swept]:
    """Remove the containers of dead owners from one engine. Never fails: a sweep is nobody's main task."""
    swept: list[Swept] = []
    try:
        found = client.api.containers(all=True, filters={"label": OWNER_LABEL})
    except Exception as error:  # the engine is foreign; the start that follows will tell what is wrong
        logger.warning("could not look for containers of dead owners: %s", error)
        return swept
    for container in found:
        label = container.get("Labels", {}).get(OWNER_LABEL, "")
        remove = partial(client.api.remove_container, container["Id"], force=True, v=True)
        if is_orphan(label) and attempt(remove, container["Id"]):
            swept.append(Swept("container", container["Id"], label))
    return swept


def sweep_directories(root: str | None = None) -> list[Swept]:
    """Remove the temporary directories of dead owners."""
    swept: list[Swept] = []
    for path in Path(root or tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*@*"):
        label = path.name.partition("@")[2].rpartition("-")[0]
        if is_orphan(label):
            shutil.rmtree(path, ignore_errors=True)
            swept.append(Swept("directory", str(path), label))
    return swept


def owned_directory(purpose: str) -> str:
    """A new temporary directory that `sweep` recognises when its owner is dead."""
    return tempfile.mkdtemp(prefix=f"{DIRECTORY_PREFIX}{purpose}@{OwnerTag.current()}-")


def is_orphan(label: str) -> bool:
    """Whether what carries this owner label belongs to a process that is certainly dead."""
    owner = OwnerTag.parse(label)
    return owner is not None and owner.is_dead


def attempt(remove: Callable[[], Any], what: str) -> bool:
    """Two sweeps may meet: one of them finds that the thing is gone, or going."""
    try:
        remove()
    except Exception as error:  # foreign engines raise what they like
        logger.info("could not remove %s: %s", what, error)
        return False
    return True
