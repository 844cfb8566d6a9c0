"""The client of the coding environment."""

from envtorch.client import EnvClient
from envtorch.envs.coding_env.models import CodeAction, CodeObservation, CodeState

__all__ = ["CodingEnv"]


class CodingEnv(
    EnvClient[CodeAction, CodeObservation, CodeState],
    environment="envtorch.envs.coding_env.environment:CodingEnvironment",
):
    """A session with the coding environment."""
