"""What travels to and from the terminal environment."""

from typing import Literal

from pydantic import Field

from envtorch.envs.tool_actions import (
    BashAction,
    EditFileAction,
    ReadFileAction,
    ViewImageAction,
    WriteFileAction,
    given_arguments,
)
from envtorch.tools import CallToolAction, CallToolObservation
from envtorch.types import State

__all__ = [
    "BashAction",
    "CommandEnding",
    "EditFileAction",
    "ReadFileAction",
    "SendKeysAction",
    "SubmitAction",
    "TerminalObservation",
    "TerminalState",
    "ViewImageAction",
    "WriteFileAction",
]

CommandEnding = Literal[
    "ok", "error", "timed out", "shell ended", "out of memory", "out of processes", "running"
]
"""How a command ended: the values of `envtorch.sandbox.CommandOutcome`, so that a client loads no sandbox."""


class SendKeysAction(CallToolAction):
    """Type on the terminal."""

    def __init__(self, keys: str, *, wait_s: float | None = None) -> None:
        super().__init__(tool_name="send_keys", arguments=given_arguments(keys=keys, wait_s=wait_s))


class SubmitAction(CallToolAction):
    """Say that the work is done; a task is graded then."""

    def __init__(self) -> None:
        super().__init__(tool_name="submit")


class TerminalObservation(CallToolObservation):
    """What a tool answered. `result` is the text that a language model is shown; the rest is for programs."""

    output: str = Field(default="", description="What the command wrote to stdout and stderr, in order")
    exit_code: int | None = Field(default=None, description="The status of a command; None while it runs")
    outcome: CommandEnding | None = Field(default=None, description="How a command ended")
    directory: str = Field(default="", description="The shell's working directory")
    left_out_bytes: int = Field(default=0, description="How much of the output was not kept")
    shell_ended: bool = Field(
        default=False, description="The shell and its state are gone; there is a new one"
    )


class TerminalState(State):
    """Where the episode stands."""

    task: str = ""
    directory: str = ""
    last_exit_code: int | None = None
    submitted: bool = False
    reward: float | None = Field(
        default=None, description="What the submitted work scored; None before, and without a task"
    )
