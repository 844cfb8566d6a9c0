"""The client of the terminal environment."""

from envtorch.client import EnvClient
from envtorch.envs.terminal_env.models import TerminalObservation, TerminalState
from envtorch.tools import CallToolAction

__all__ = ["TerminalEnv"]


class TerminalEnv(
    EnvClient[CallToolAction, TerminalObservation, TerminalState],
    environment="envtorch.envs.terminal_env.environment:TerminalEnvironment",
):
    """A session with the terminal environment. `BashAction` and its siblings are the actions."""
