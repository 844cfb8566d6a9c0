"""The terminal environment, served: `uvicorn envtorch.envs.terminal_env.app:app`."""

from envtorch.envs.terminal_env.environment import TerminalEnvironment
from envtorch.server import create_app

app = create_app(TerminalEnvironment, env_name="terminal_env", sessions=256)
