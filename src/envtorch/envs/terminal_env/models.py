"""What travels to and from the terminal environment."""

from typing import Any, Literal

from pydantic import Field

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
    "WriteFileAction",
]

CommandEnding = Literal[
    "ok", "error", "timed out", "shell ended", "out of memory", "out of processes", "running"
]
"""How a command ended: the values of `envtorch.sandbox.CommandOutcome`, so that a client loads no sandbox."""


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


class BashAction(CallToolAction):
    """Run a command in the persistent shell."""

    def __init__(self, command: str, *, timeout_s: float | None = None, terminal: bool | None = None) -> None:
        arguments = _given(command=command, timeout_s=timeout_s, terminal=terminal)
        super().__init__(tool_name="bash", arguments=arguments)


class SendKeysAction(CallToolAction):
    """Type on the terminal."""

    def __init__(self, keys: str, *, wait_s: float | None = None) -> None:
        super().__init__(tool_name="send_keys", arguments=_given(keys=keys, wait_s=wait_s))


class ReadFileAction(CallToolAction):
    """Read a text file, or some lines of it."""

    def __init__(self, path: str, *, first_line: int | None = None, last_line: int | None = None) -> None:
        arguments = _given(path=path, first_line=first_line, last_line=last_line)
        super().__init__(tool_name="read_file", arguments=arguments)


class WriteFileAction(CallToolAction):
    """Make or replace a text file."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(tool_name="write_file", arguments={"path": path, "text": text})


class EditFileAction(CallToolAction):
    """Replace a text that occurs once in a file."""

    def __init__(self, path: str, old: str, new: str) -> None:
        super().__init__(tool_name="edit_file", arguments={"path": path, "old": old, "new": new})


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
