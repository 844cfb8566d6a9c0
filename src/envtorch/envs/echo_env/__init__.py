"""The echo environment: says back what it is told. The smallest whole environment there is."""

from envtorch.envs.echo_env.client import EchoEnv
from envtorch.envs.echo_env.models import EchoAction, EchoObservation, EchoState

__all__ = ["EchoAction", "EchoEnv", "EchoObservation", "EchoState"]
