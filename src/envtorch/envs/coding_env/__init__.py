"""The coding environment: runs an agent's Python in a sandbox, and keeps its state for an episode."""

from envtorch.envs.coding_env.client import CodingEnv, CodingToolEnv
from envtorch.envs.coding_env.models import (
    CodeAction,
    CodeObservation,
    CodeState,
    CodeToolObservation,
    PythonAction,
)
from envtorch.envs.tool_actions import (
    BashAction,
    EditFileAction,
    ReadFileAction,
    ViewImageAction,
    WriteFileAction,
)

__all__ = [
    "BashAction",
    "CodeAction",
    "CodeObservation",
    "CodeState",
    "CodeToolObservation",
    "CodingEnv",
    "CodingToolEnv",
    "EditFileAction",
    "PythonAction",
    "ReadFileAction",
    "ViewImageAction",
    "WriteFileAction",
]
