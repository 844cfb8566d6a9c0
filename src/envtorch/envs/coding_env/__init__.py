"""The coding environment: runs an agent's Python in a sandbox, and keeps its state for an episode."""

from envtorch.envs.coding_env.client import CodingEnv
from envtorch.envs.coding_env.models import CodeAction, CodeObservation, CodeState

__all__ = ["CodeAction", "CodeObservation", "CodeState", "CodingEnv"]
