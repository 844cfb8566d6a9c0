"""What a sandbox answers: frozen values."""

import enum
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Completed", "Failure", "FileInfo", "Outcome", "Result", "Variable", "Verdict"]


class Outcome(enum.Enum):
    """How a run ended."""

    OK = "ok"
    ERROR = "error"
    """The code raised, or left with a status other than 0."""
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_PROCESSES = "out of processes"
    OUT_OF_DISK = "out of disk"
    OUTPUT_TRUNCATED = "output truncated"
    """The code went well, but printed more than is kept."""
    CRASHED = "crashed"
    """The interpreter ended, or spoke nonsense and was ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of the agent's code. The traceback shows the agent's frames only."""

    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run did. Everything in it was said by the agent's own process, except `outcome` when that is
    a limit or a crash, and `alive`."""

    outcome: Outcome
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """`repr` of the last expression, None when there was none or it was None."""
    value_json: str | None = None
    """The same value as JSON text, when it has such a form."""
    exit_status: int = 0
    """0, or the status of `sys.exit`; minus the signal when the interpreter was killed."""
    exception: Failure | None = None
    duration_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: int = 0
    """The most memory the interpreter has had resident so far."""
    truncated: bool = False
    parsed: bool = True
    """False when the code is no Python: it was not run."""
    alive: bool = True
    """False when the interpreter, and the state it held, are gone."""

    @property
    def ok(self) -> bool:
        return self.outcome in (Outcome.OK, Outcome.OUTPUT_TRUNCATED)

    def json(self) -> Any:
        """The value of the last expression as plain data. Raises `ValueError` when it has no such form."""
        if self.value_json is None:
            raise ValueError("the run had no value that can be written as JSON")
        try:
            return json.loads(self.value_json)
        except RecursionError as error:
            raise ValueError("the value is nested too deeply") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What a command in the sandbox did."""

    outcome: Outcome
    exit_status: int
    stdout: bytes
    stderr: bytes
    duration_s: float = 0.0
    cpu_s: float = 0.0
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of the workspace; `kind` is file, folder or link."""

    path: str
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class Variable:
    """One name the agent has defined."""

    type: str
    repr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a checker said. `score` is 0 unless the checker itself ran to its end and said otherwise."""

    score: float
    passed: bool
    why: str = ""
    details: Any = None
