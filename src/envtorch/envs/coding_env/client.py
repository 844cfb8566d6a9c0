"""The clients of the coding environment."""

from envtorch.client import EnvClient
from envtorch.envs.coding_env.models import CodeAction, CodeObservation, CodeState, CodeToolObservation
from envtorch.tools import CallToolAction

__all__ = ["CodingEnv", "CodingToolEnv"]


class CodingEnv(
    EnvClient[CodeAction, CodeObservation, CodeState],
    environment="envtorch.envs.coding_env.environment:CodingEnvironment",
):
    """A session with the coding environment."""


class CodingToolEnv(
    EnvClient[CallToolAction, CodeToolObservation, CodeState],
    environment="envtorch.envs.coding_env.environment:CodingEnvironment",
):
    """A session with the coding environment through its tools: `PythonAction`, `BashAction` and the like."""
