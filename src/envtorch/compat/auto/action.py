"""`AutoAction`: an environment's action class, by the environment's name."""

import sys
from typing import Any

from envtorch.compat.auto.discovery import (
    NOTHING_FOUND,
    _is_hub_url,
    get_discovery,
    known,
)
from envtorch.compat.auto.env import AutoEnv
from envtorch.compat.generic_client import GenericAction

__all__ = ["AutoAction"]


class AutoAction:
    """Finds the action class that belongs to a name."""

    def __init__(self) -> None:
        raise TypeError("AutoAction is a factory class: use AutoAction.from_hub() or AutoAction.from_env()")

    @classmethod
    def from_env(cls, name: str, skip_install: bool = False, trust_remote_code: bool = False) -> Any:
        """The action class; with `skip_install` a generic one, which takes any fields."""
        if skip_install:
            return GenericAction
        if _is_hub_url(name):
            name = AutoEnv._ensure_package_from_hub(name, trust_remote_code=trust_remote_code)
        info = known(get_discovery(), name)
        try:
            return info.get_action_class()
        except ImportError as error:
            raise ImportError(
                f"Failed to import {info.action_class_name}: {error}. "
                f"Try pip install --force-reinstall {info.package_name}"
            ) from error

    @classmethod
    def from_hub(cls, name: str, **options: Any) -> Any:
        """`from_env`."""
        return cls.from_env(name, **options)

    @classmethod
    def get_action_info(cls, name: str) -> dict[str, Any]:
        """What is known of an environment's action."""
        info = known(get_discovery(), name)
        return {
            "env_key": info.env_key,
            "env_name": info.name,
            "package": info.package_name,
            "action_class": info.action_class_name,
            "observation_class": info.observation_class_name,
            "module": info.client_module_path,
        }

    @classmethod
    def list_actions(cls) -> None:
        """Write the installed environments' actions to standard output."""
        found = get_discovery().discover()
        if not found:
            sys.stdout.write(f"{NOTHING_FOUND}\n")
            return
        lines = [f"  {key:<20} {info.action_class_name}" for key, info in sorted(found.items())]
        told = ["Available Action Classes:", *lines, f"Total: {len(found)} action classes"]
        sys.stdout.write("\n".join(told) + "\n")
