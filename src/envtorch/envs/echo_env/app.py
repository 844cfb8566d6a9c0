"""The echo environment, served: `uvicorn envtorch.envs.echo_env.app:app`."""

from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app

app = create_app(EchoEnvironment, name="echo_env", sessions=64)
