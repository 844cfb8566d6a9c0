"""The environments that come along with EnvTorch, as `AutoEnv` finds them."""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from envtorch import __version__, client, envs
from envtorch.compat.auto.info import EnvironmentInfo
from envtorch.compat.env_client import EnvClient

__all__ = ["BundledInfo", "bundled"]


@dataclass
class BundledInfo(EnvironmentInfo):
    """One of ours. Its client is awaitable and blocking, as those of OpenEnv are."""

    def get_client_class(self) -> type[Any]:
        return _dual(_client_in(self.client_module_path))


def bundled() -> dict[str, EnvironmentInfo]:
    """Our environments by their short names."""
    names = [module.name for module in pkgutil.iter_modules(envs.__path__) if module.ispkg]
    return {name.removesuffix("_env"): _info(name) for name in names}


def _info(name: str) -> BundledInfo:
    place = f"{envs.__name__}.{name}.client"
    found = _client_in(place)
    spec = found.spec()
    return BundledInfo(
        env_key=name.removesuffix("_env"),
        name=name,
        package_name="envtorch",
        version=__version__,
        description=(found.__doc__ or name).partition("\n")[0].rstrip("."),
        client_module_path=place,
        client_class_name=found.__name__,
        action_class_name=spec.action.__name__,
        observation_class_name=spec.observation.__name__,
        default_image=f"{name.replace('_', '-')}:latest",
    )


def _client_in(place: str) -> type[client.EnvClient[Any, Any, Any]]:
    """The client class that a module exports."""
    module = importlib.import_module(place)
    exported = [getattr(module, name) for name in module.__all__]
    found: type[client.EnvClient[Any, Any, Any]] = next(
        c for c in exported if issubclass(c, client.EnvClient)
    )
    return found


def _dual(native: type[client.EnvClient[Any, Any, Any]]) -> type:
    """A client of OpenEnv's kind that speaks with the classes of one of ours."""
    translator = native("local://")  # it connects on first use, which never comes
    hooks = ("_step_payload", "_parse_result", "_parse_state")

    def hook(name: str) -> Any:
        return lambda self, value: getattr(translator, name)(value)

    members = {
        **{name: hook(name) for name in hooks},
        "__module__": native.__module__,
        "__doc__": native.__doc__,
    }
    return type(native.__name__, (EnvClient,), members)
