"""The walk, served with room for several sessions."""

from envtorch import create_app
from tests.recording.environments import Walk

app = create_app(Walk, env_name="walk", max_concurrent_envs=16)
