"""The coding environment, served: `uvicorn envtorch.envs.coding_env.app:app`."""

from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.server import create_app

app = create_app(CodingEnvironment, env_name="coding_env", sessions=256)
