"""From what a person types to an application that can be served."""

from importlib.util import find_spec
from typing import Any

from envtorch.env import load_object

__all__ = ["load_app"]


def load_app(target: str) -> Any:
    """The application `target` names: `module:app`, `module:Environment`, or a bundled environment."""
    if ":" not in target and find_spec("envtorch.envs." + target.replace("-", "_")):
        target = f"envtorch.envs.{target.replace('-', '_')}.app:app"
    found = load_object(target)
    from fastapi import FastAPI

    if isinstance(found, FastAPI):
        return found
    from envtorch.server import create_app

    return create_app(found)
