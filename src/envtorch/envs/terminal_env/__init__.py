"""The terminal environment: a shell, files and tests on a root file system of the agent's own."""

from envtorch.envs.terminal_env.client import TerminalEnv
from envtorch.envs.terminal_env.models import (
    BashAction,
    EditFileAction,
    ReadFileAction,
    SendKeysAction,
    SubmitAction,
    TerminalObservation,
    TerminalState,
    ViewImageAction,
    WriteFileAction,
)

__all__ = [
    "BashAction",
    "EditFileAction",
    "ReadFileAction",
    "SendKeysAction",
    "SubmitAction",
    "TerminalEnv",
    "TerminalObservation",
    "TerminalState",
    "ViewImageAction",
    "WriteFileAction",
]
