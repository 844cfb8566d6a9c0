"""The workshop, served with room for forks."""

from envtorch import create_app
from tests.cli.environments import Workshop

app = create_app(Workshop, env_name="workshop", max_concurrent_envs=32)
