"""`openenv.yaml`, as much of it as serving needs: its plain top-level fields, whatever else is in it."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from envtorch.errors import ConfigurationError
from envtorch.providers.recipes import top_level_fields

__all__ = ["app_candidates", "read_manifest"]

logger = logging.getLogger("envtorch.compat")


def read_manifest(directory: Path) -> dict[str, str]:
    """The manifest's plain top-level fields; empty if there is no manifest, or one that is not YAML.

    Serving needs no manifest where the application is in its usual place, so this is a warning, no error.
    """
    for name in ("openenv.yaml", "openenv.yml"):
        path = directory / name
        if path.is_file():
            try:
                return top_level_fields(path.read_text(encoding="utf-8", errors="replace"), place=str(path))
            except ConfigurationError as error:
                logger.warning("nothing is read from the manifest: %s", error)
    return {}


def app_candidates(manifest: Mapping[str, str]) -> list[str]:
    """Where the application may be, best guess first, each as `module:attribute`."""
    told = [_as_module(manifest[key]) for key in ("app", "entrypoint", "entry_point") if key in manifest]
    usual = ["server.app:app", "app:app", "server.main:app", "main:app", "server:app"]
    return list(dict.fromkeys([*(name for name in told if name), *usual]))


def _as_module(app: str) -> str | None:
    """`server/app.py`, `src/server/app.py` and `server.app` are understood as `server.app:app`."""
    module, _, attribute = app.partition(":")
    module = module.removesuffix(".py").replace("/", ".").strip(". ").removeprefix("src.")
    if not re.fullmatch(r"\w+(\.\w+)*", module) or not re.fullmatch(r"\w*", attribute):
        return None
    return f"{module}:{attribute or 'app'}"
