"""Adapters between rollouts and trainers. A trainer is imported when a name of its adapter is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envtorch.train.gymnasium_envs import GymnasiumEnv as GymnasiumEnv
    from envtorch.train.gymnasium_envs import GymnasiumVectorEnv as GymnasiumVectorEnv
    from envtorch.train.inspect_sandbox import InspectSandbox as InspectSandbox
    from envtorch.train.model_policy import ModelPolicy as ModelPolicy
    from envtorch.train.skyrl_generator import SessionGenerator as SessionGenerator
    from envtorch.train.skyrl_generator import SessionTextEnv as SessionTextEnv
    from envtorch.train.tinker_groups import SessionGroupBuilder as SessionGroupBuilder
    from envtorch.train.trl_environments import TRLEnvironments as TRLEnvironments
    from envtorch.train.trl_rollouts import TRLRollouts as TRLRollouts
    from envtorch.train.trl_worker import TRLRolloutWorker as TRLRolloutWorker
    from envtorch.train.verifiers_tasks import VerifiersEnv as VerifiersEnv
    from envtorch.train.verifiers_tasks import VerifiersTaskset as VerifiersTaskset
    from envtorch.train.verl_loop import EnvTorchLoop as EnvTorchLoop

_MODULES = {
    "GymnasiumEnv": "gymnasium_envs",
    "GymnasiumVectorEnv": "gymnasium_envs",
    "EnvTorchLoop": "verl_loop",
    "InspectSandbox": "inspect_sandbox",
    "SessionGenerator": "skyrl_generator",
    "SessionGroupBuilder": "tinker_groups",
    "SessionTextEnv": "skyrl_generator",
    "VerifiersEnv": "verifiers_tasks",
    "VerifiersTaskset": "verifiers_tasks",
    "ModelPolicy": "model_policy",
    "TRLEnvironments": "trl_environments",
    "TRLRolloutWorker": "trl_worker",
    "TRLRollouts": "trl_rollouts",
}
"""Each public name, and the module it is in."""

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"envtorch.train.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
