"""The tools of the environments with a shell and files: their arguments, and how they are described."""

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from envtorch.types import Tool

__all__ = ["FILE_TOOLS", "TERMINAL_TOOLS", "ToolArguments", "describe_tools", "explain_arguments"]


def _without_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path cannot hold a NUL character")
    return path


FilePath = Annotated[str, AfterValidator(_without_nul)]


class ToolArguments(BaseModel):
    """The arguments of a tool; its docstring describes the tool."""

    model_config = ConfigDict(extra="forbid")


class BashArguments(ToolArguments):
    """Run a command in a persistent bash shell: its directory, variables, functions and background jobs are
    kept for the next command. Answers with stdout and stderr, and the exit code when it is not 0. Programs
    cannot read from stdin; set `terminal` for one that wants a terminal (an editor, a debugger, a prompt),
    and go on with send_keys and screen."""

    command: str = Field(description="The command, as bash reads it; it may have several lines")
    timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Seconds until it is interrupted, with Ctrl-C first; the shell is kept"
    )
    terminal: bool = Field(default=False, description="Run it on the terminal, and answer with the screen")


class SendKeysArguments(ToolArguments):
    """Type on the terminal, and answer with the screen. Without a program that has the terminal, an
    interactive shell is started on it; `exit` ends that. Special keys: <enter>, <tab>, <esc>, <backspace>,
    <up>, <down>, <left>, <right>, <home>, <end>, <page-up>, <page-down>, <delete>, <ctrl-c> and the like."""

    keys: Annotated[str, Field(max_length=4096)] = Field(
        description="Text and special keys, such as 'ls -l<enter>' or ':wq<enter>'; for much text, write_file"
    )
    wait_s: Annotated[float, Field(gt=0, le=60)] = Field(
        default=2.0, description="The longest time to wait for the program to become quiet"
    )


class ScreenArguments(ToolArguments):
    """Show the terminal's screen as it is now."""


class ReadFileArguments(ToolArguments):
    """Read a text file, or some lines of it."""

    path: FilePath = Field(description="Absolute, or relative to the shell's directory")
    first_line: Annotated[int, Field(ge=1)] = 1
    last_line: Annotated[int, Field(ge=1)] | None = None


class WriteFileArguments(ToolArguments):
    """Make or replace a text file, and the directories above it."""

    path: FilePath = Field(description="Absolute, or relative to the shell's directory")
    text: str = Field(description="The whole contents")


class EditFileArguments(ToolArguments):
    """Replace a text that occurs exactly once in a file by another."""

    path: FilePath = Field(description="Absolute, or relative to the shell's directory")
    old: Annotated[str, Field(min_length=1)] = Field(
        description="The text to replace, exactly as it is, with enough around it to be the only one"
    )
    new: str = Field(description="What stands there afterwards")


class ListFilesArguments(ToolArguments):
    """List a directory."""

    path: FilePath = "."
    depth: Annotated[int, Field(ge=1, le=16)] = Field(default=1, description="How many levels to show")


class SearchArguments(ToolArguments):
    """Find lines in text files that match a regular expression of Python's."""

    pattern: str
    path: FilePath = Field(default=".", description="A file, or a directory to search with all below it")
    glob: str = Field(default="", description="Only files with such names, as in '*.py'")


class ViewImageArguments(ToolArguments):
    """Look at a picture that a program has made: PNG, JPEG, GIF or WebP."""

    path: FilePath = Field(description="Absolute, or relative to the shell's directory")


class SubmitArguments(ToolArguments):
    """Say that the work is done. This ends the episode; a task is graded now."""


FILE_TOOLS: dict[str, type[ToolArguments]] = {
    "read_file": ReadFileArguments,
    "write_file": WriteFileArguments,
    "edit_file": EditFileArguments,
    "list_files": ListFilesArguments,
    "search": SearchArguments,
    "view_image": ViewImageArguments,
}
"""The tools for files, with the classes of their arguments."""

TERMINAL_TOOLS: dict[str, type[ToolArguments]] = {
    "bash": BashArguments,
    "send_keys": SendKeysArguments,
    "screen": ScreenArguments,
    **FILE_TOOLS,
    "submit": SubmitArguments,
}
"""Those of a session with a terminal."""


def describe_tools(tools: Mapping[str, type[ToolArguments]]) -> list[Tool]:
    """The tools as values, in their order."""
    return [_described(name, arguments) for name, arguments in tools.items()]


def _described(name: str, arguments: type[BaseModel]) -> Tool:
    schema: dict[str, Any] = arguments.model_json_schema()
    schema.pop("description", None)
    schema.pop("title", None)
    return Tool(name=name, description=" ".join((arguments.__doc__ or "").split()), input_schema=schema)


def explain_arguments(error: pydantic.ValidationError) -> str:
    """What is wrong with the arguments of a tool, one after another."""
    found = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()]
    return "; ".join(found)
