"""What is known of an environment that can be had by its name."""

import importlib
from dataclasses import dataclass
from typing import Any

__all__ = ["EnvironmentInfo", "infer_class_name", "normal_name"]


@dataclass
class EnvironmentInfo:
    """An installed environment, and where its classes are."""

    env_key: str
    name: str
    package_name: str
    version: str
    description: str
    client_module_path: str
    client_class_name: str
    action_class_name: str
    observation_class_name: str
    default_image: str
    spec_version: int | None = None
    manifest: dict[str, Any] | None = None

    def get_client_class(self) -> type[Any]:
        return self._find(self.client_class_name)

    def get_action_class(self) -> type:
        return self._find(self.action_class_name)

    def get_observation_class(self) -> type:
        return self._find(self.observation_class_name)

    def _find(self, class_name: str) -> type:
        package = self.client_module_path.rpartition(".")[0]
        for module in (self.client_module_path, package, f"{package}.models"):
            try:
                found = getattr(importlib.import_module(module), class_name, None)
            except ModuleNotFoundError as missing:
                if missing.name not in (module, package):
                    raise
                continue
            if isinstance(found, type):
                return found
        raise ImportError(f"{self.package_name} has no class {class_name}")


def normal_name(name: str) -> str:
    """`echo`, `echo-env` and `echo_env` are all `echo_env`."""
    plain = name.strip().lower().replace("-", "_")
    return plain if plain.endswith("_env") else f"{plain}_env"


def infer_class_name(env_name: str, kind: str) -> str:
    words = "".join(word.capitalize() for word in env_name.removesuffix("_env").split("_"))
    return words + {"client": "Env", "action": "Action", "observation": "Observation"}[kind]
