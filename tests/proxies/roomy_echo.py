"""The echo environment with room for every session of a test."""

from envtorch import create_app
from envtorch.envs.echo_env.environment import EchoEnvironment

app = create_app(EchoEnvironment, sessions=1000)
