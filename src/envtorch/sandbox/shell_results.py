"""What commands on a writable root answer: frozen values."""

import enum
from dataclasses import dataclass

__all__ = ["CommandOutcome", "CommandResult", "FoundFile", "FoundLine", "Listing"]


class CommandOutcome(enum.Enum):
    """How a command in a persistent shell ended."""

    OK = "ok"
    ERROR = "error"
    """It left with a status other than 0."""
    TIMED_OUT = "timed out"
    """It was interrupted; the shell and its state are kept unless `shell_ended` says otherwise."""
    SHELL_ENDED = "shell ended"
    """The command ended the shell itself (`exit`, `exec`); there is a fresh one now."""
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_PROCESSES = "out of processes"
    RUNNING = "running"
    """The program has the terminal, and goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What one command did. Everything in it but `outcome` was said by the agent's own shell."""

    outcome: CommandOutcome
    output: str = ""
    """What it wrote to stdout and stderr, in order; the head and the tail when it was long."""
    exit_code: int | None = None
    """None while it runs, and for a command that ended the shell without a status."""
    directory: str = "/"
    """The shell's working directory afterwards."""
    left_out_bytes: int = 0
    """How much of the output was not kept."""
    shell_ended: bool = False
    """The shell did not survive: directory, variables, functions and jobs are gone."""
    background: str = ""
    """What background jobs had written since the last command."""
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.outcome is CommandOutcome.OK


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One entry below a directory; `kind` is file, folder or link."""

    path: str
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line that matched a search."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries of a directory, in order; `complete` is False when there are more."""

    entries: tuple[FoundFile, ...]
    complete: bool
