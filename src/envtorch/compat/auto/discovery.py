"""Which environments are installed: distributions called `openenv-...`, and what their manifests tell."""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from envtorch.compat.auto.bundled import bundled
from envtorch.compat.auto.info import EnvironmentInfo, infer_class_name, normal_name
from envtorch.compat.manifest import read_manifest

__all__ = ["EnvironmentDiscovery", "EnvironmentInfo", "get_discovery", "reset_discovery"]

_normalize_env_name, _infer_class_name = normal_name, infer_class_name  # as OpenEnv's tests call them

NOTHING_FOUND = "No OpenEnv environments found. Install one: pip install openenv-<name>"


class EnvironmentDiscovery:
    """Looks through the installed distributions, once."""

    def __init__(self) -> None:
        self._found: dict[str, EnvironmentInfo] | None = None

    def discover(self, use_cache: bool = True) -> dict[str, EnvironmentInfo]:
        """The installed environments by their short names."""
        if self._found is None or not use_cache:
            self._found = {**bundled(), **self._discover_installed_packages()}
        return self._found

    def _discover_installed_packages(self) -> dict[str, EnvironmentInfo]:
        found: dict[str, EnvironmentInfo] = {}
        for distribution in importlib.metadata.distributions():
            name = distribution.metadata["Name"] or ""
            if not name.lower().startswith(("openenv-", "openenv_")) or _is_core(name):
                continue
            module = name[len("openenv-") :].replace("-", "_")
            info = _create_env_info_from_package(name, module, distribution.version)
            if info is not None:
                found[info.env_key] = info
        return found

    def get_environment(self, env_key: str) -> EnvironmentInfo | None:
        return self.discover().get(env_key)

    def get_environment_by_name(self, name: str) -> EnvironmentInfo | None:
        """An environment by any spelling of its name: `echo`, `echo-env`, `echo_env`."""
        return self.discover().get(_normalize_env_name(name).removesuffix("_env"))

    def list_environments(self) -> None:
        """Write the installed environments to standard output."""
        found = self.discover()
        if not found:
            sys.stdout.write(f"{NOTHING_FOUND}\n")
            return
        lines = [f"  {key:<20} {info.description} ({info.version})" for key, info in sorted(found.items())]
        told = ["Available OpenEnv Environments:", *lines, f"Total: {len(found)} environments"]
        sys.stdout.write("\n".join(told) + "\n")

    def clear_cache(self) -> None:
        self._found = None


def _is_core(distribution: str) -> bool:
    return distribution.lower().replace("_", "-") in ("openenv-core", "openenv")


def _create_env_info_from_package(
    package_name: str, module_name: str, version: str
) -> EnvironmentInfo | None:
    manifest = _load_manifest_from_package(package_name, module_name) or {}
    name = str(manifest.get("name") or _normalize_env_name(module_name))
    return EnvironmentInfo(
        env_key=_normalize_env_name(name).removesuffix("_env"),
        name=name,
        package_name=package_name,
        version=str(manifest.get("version") or version),
        description=str(manifest.get("description") or f"{name} environment"),
        client_module_path=f"{module_name}.client",
        client_class_name=str(manifest.get("client") or _infer_class_name(name, "client")),
        action_class_name=str(manifest.get("action") or _infer_class_name(name, "action")),
        observation_class_name=str(manifest.get("observation") or _infer_class_name(name, "observation")),
        default_image=f"{name.replace('_', '-')}:latest",
        spec_version=_number(manifest.get("spec_version")),
        manifest=dict(manifest),
    )


def _number(value: Any) -> int | None:
    return int(value) if str(value).isdigit() else None


def _load_manifest_from_package(package_name: str, module_name: str) -> Mapping[str, Any] | None:
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return next((found for place in places if (found := read_manifest(Path(place)))), None)


def _is_hub_url(name: str) -> bool:
    """Whether a name leads to the Hub: `user/space`, or an address there."""
    return "/" in name


def known(discovery: EnvironmentDiscovery, name: str) -> EnvironmentInfo:
    """The environment of that name. Raises `ValueError`, with the names that are close to it."""
    info = discovery.get_environment_by_name(name)
    if info is None:
        raise _unknown(name, discovery.discover())
    return info


def _unknown(name: str, found: Mapping[str, Any]) -> ValueError:
    """The error for a name nobody knows, with the names that are close to it."""
    if not found:
        return ValueError(NOTHING_FOUND)
    close = get_close_matches(_normalize_env_name(name).removesuffix("_env"), found, cutoff=0.5)
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    return ValueError(f"Unknown environment {name!r}.{hint} Available: {', '.join(sorted(found))}")


_discovery: EnvironmentDiscovery | None = None


def get_discovery() -> EnvironmentDiscovery:
    """The process's one discovery."""
    global _discovery
    if _discovery is None:
        _discovery = EnvironmentDiscovery()
    return _discovery


def reset_discovery() -> None:
    """Forget what was found; the next look is a fresh one."""
    global _discovery
    _discovery = None
