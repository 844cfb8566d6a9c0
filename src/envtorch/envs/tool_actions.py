"""The actions that call the tools of the environments with a shell and files."""

from typing import Any

from envtorch.tools import CallToolAction

__all__ = [
    "BashAction",
    "EditFileAction",
    "ReadFileAction",
    "ViewImageAction",
    "WriteFileAction",
    "given_arguments",
]


def given_arguments(**arguments: Any) -> dict[str, Any]:
    """The arguments that are not None: a tool has its own defaults."""
    return {name: value for name, value in arguments.items() if value is not None}


class BashAction(CallToolAction):
    """Run a command in bash. `terminal` is for environments that have one."""

    def __init__(self, command: str, *, timeout_s: float | None = None, terminal: bool | None = None) -> None:
        arguments = given_arguments(command=command, timeout_s=timeout_s, terminal=terminal)
        super().__init__(tool_name="bash", arguments=arguments)


class ReadFileAction(CallToolAction):
    """Read a text file, or some lines of it."""

    def __init__(self, path: str, *, first_line: int | None = None, last_line: int | None = None) -> None:
        arguments = given_arguments(path=path, first_line=first_line, last_line=last_line)
        super().__init__(tool_name="read_file", arguments=arguments)


class WriteFileAction(CallToolAction):
    """Make or replace a text file."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(tool_name="write_file", arguments={"path": path, "text": text})


class EditFileAction(CallToolAction):
    """Replace a text that occurs once in a file."""

    def __init__(self, path: str, old: str, new: str) -> None:
        super().__init__(tool_name="edit_file", arguments={"path": path, "old": old, "new": new})


class ViewImageAction(CallToolAction):
    """Look at a picture. The result's content has it as MCP does: base64, and its media type."""

    def __init__(self, path: str) -> None:
        super().__init__(tool_name="view_image", arguments={"path": path})
