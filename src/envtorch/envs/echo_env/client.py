"""The client of the echo environment."""

from envtorch.client import EnvClient
from envtorch.envs.echo_env.models import EchoAction, EchoObservation, EchoState

__all__ = ["EchoEnv"]


class EchoEnv(
    EnvClient[EchoAction, EchoObservation, EchoState],
    environment="envtorch.envs.echo_env.environment:EchoEnvironment",
):
    """A session with the echo environment."""
