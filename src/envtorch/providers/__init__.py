"""Where servers run: in a process, a container, a cluster. Each provider starts one and yields its address.

`from envtorch.providers import LocalDockerProvider` imports Docker's package, and nothing else does.
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from envtorch.errors import ConfigurationError

if TYPE_CHECKING:
    from envtorch.providers.daytona import DaytonaProvider
    from envtorch.providers.docker import LocalDockerProvider
    from envtorch.providers.hub import Space
    from envtorch.providers.kubernetes import KubernetesProvider
    from envtorch.providers.process import ProcessProvider
    from envtorch.providers.provider_base import ContainerProvider, Phase, RuntimeProvider, Status
    from envtorch.providers.ray_provider import RayProvider
    from envtorch.providers.ray_workers import RayWorkers
    from envtorch.providers.sweeper import sweep
    from envtorch.providers.uv import UVProvider

__all__ = [
    "ContainerProvider",
    "DaytonaProvider",
    "KubernetesProvider",
    "LocalDockerProvider",
    "Phase",
    "ProcessProvider",
    "RayProvider",
    "RayWorkers",
    "RuntimeProvider",
    "Space",
    "Status",
    "UVProvider",
    "make_provider",
    "sweep",
]

_MODULES = {
    "ContainerProvider": "provider_base",
    "Phase": "provider_base",
    "RuntimeProvider": "provider_base",
    "Status": "provider_base",
    "DaytonaProvider": "daytona",
    "LocalDockerProvider": "docker",
    "KubernetesProvider": "kubernetes",
    "ProcessProvider": "process",
    "RayProvider": "ray_provider",
    "RayWorkers": "ray_workers",
    "Space": "hub",
    "UVProvider": "uv",
    "sweep": "sweeper",
}

NAMES = {
    "process": "ProcessProvider",
    "docker": "LocalDockerProvider",
    "podman": "LocalDockerProvider",
    "kubernetes": "KubernetesProvider",
    "ray": "RayProvider",
    "daytona": "DaytonaProvider",
}
"""The providers that can be asked for by name."""

GROUP = "envtorch.providers"
"""The entry-point group under which other packages offer providers of their own."""


def make_provider(name: str) -> Any:
    """A new provider, by its name: one of `NAMES`, or of an installed package's entry points."""
    require_provider(name)
    if name in NAMES:
        return __getattr__(NAMES[name])()
    return _offered()[name].load()()


def require_provider(name: str) -> None:
    """Raises `ConfigurationError` when there is no provider of this name. None is loaded."""
    if name not in NAMES and name not in (found := _offered()):
        known = ", ".join(sorted({*NAMES, *found}))
        raise ConfigurationError(f"there is no provider {name!r}: there are {known}")


def _offered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"envtorch.providers.{_MODULES[name]}"), name)
