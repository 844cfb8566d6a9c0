"""`AutoEnv` and `AutoAction`: an installed environment's classes, by the environment's name."""

from envtorch.compat.auto.action import AutoAction
from envtorch.compat.auto.env import AutoEnv

__all__ = ["AutoAction", "AutoEnv"]
