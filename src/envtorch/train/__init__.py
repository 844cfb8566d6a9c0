"""Adapters between rollouts and trainers. A trainer is imported when a name of its adapter is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envtorch.train.gymnasium_envs import GymnasiumEnv as GymnasiumEnv
    from envtorch.train.gymnasium_envs import GymnasiumVectorEnv as GymnasiumVectorEnv
    from envtorch.train.model_policy import ModelPolicy as ModelPolicy
    from envtorch.train.trl_environments import TRLEnvironments as TRLEnvironments
    from envtorch.train.trl_rollouts import TRLRollouts as TRLRollouts
    from envtorch.train.trl_worker import TRLRolloutWorker as TRLRolloutWorker

_MODULES = {
    "GymnasiumEnv": "gymnasium_envs",
    "GymnasiumVectorEnv": "gymnasium_envs",
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
