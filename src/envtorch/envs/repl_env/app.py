"""The REPL environment, served: `uvicorn envtorch.envs.repl_env.app:app`."""

from envtorch.envs.repl_env.environment import REPLEnvironment
from envtorch.server import create_app

app = create_app(REPLEnvironment, name="repl_env", sessions=64)
