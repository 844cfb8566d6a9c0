"""An executor for platforms without the kernel sandbox: smolagents' interpreter of a subset of Python.

It runs in the owner's own process, so it is no isolation: no limit on memory, processes or disk holds, code
cannot be interrupted, and there are no files, commands, forks or grading. It knows only part of the
language and is many times slower. Use it where nothing else runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envtorch.errors import SessionLost
from envtorch.extras import missing_extra

from .results import Failure, Outcome, Result

try:
    from smolagents.local_python_executor import LocalPythonExecutor
except ImportError as error:
    raise missing_extra("smolagents", "the smolagents executor needs the smolagents package") from error

__all__ = ["CANNOT", "SmolagentsExecutor"]

CANNOT: Mapping[str, str] = {
    "fork": "its state is plain objects of the owner's process, and no namespace keeps copies apart",
    "exec": "it runs no commands",
    "files": "it has no workspace of its own",
    "interrupt": "it runs on the owner's own thread",
    "limits": "memory, processes and disk are the owner's own",
    "isolation": "it shares a process with its owner",
}
"""What a `Sandbox` can do and this cannot, and why."""


class SmolagentsExecutor:
    """Runs code in smolagents' interpreter and keeps its state between runs."""

    def __init__(
        self,
        *,
        imports: Sequence[str] = (),
        functions: Mapping[str, Callable[..., Any]] | None = None,
        timeout_s: float = 30.0,
        output_bytes: int = 1024 * 1024,
    ) -> None:
        self._executor = LocalPythonExecutor(
            list(imports), max_print_outputs_length=output_bytes, timeout_seconds=max(1, round(timeout_s))
        )
        self._executor.send_tools(dict(functions or {}))
        self._limit = output_bytes
        self._timeout_s = timeout_s
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether the state is still there."""
        return not self._closed

    def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run `code`. A time limit is kept only roughly, in whole seconds, by smolagents itself."""
        if self._closed:
            raise SessionLost("the executor is closed")
        self._executor.timeout_seconds = max(1, round(self._timeout_s if timeout_s is None else timeout_s))
        began = time.monotonic()
        try:
            said = self._executor(code)
        except Exception as error:  # the agent's code failed, or used what this interpreter does not know
            timed_out = type(error).__name__ == "ExecutionTimeoutError"
            return Result(
                outcome=Outcome.TIMED_OUT if timed_out else Outcome.ERROR,
                stdout=str(self._executor.state.get("_print_outputs", "")),
                exit_status=1,
                parsed=not isinstance(error.__context__, SyntaxError),
                exception=Failure(type(error).__name__, str(error), str(error)),
                duration_s=time.monotonic() - began,
            )
        value = None if said.output is None else repr(said.output)
        return Result(outcome=Outcome.OK, stdout=said.logs, value=value, duration_s=time.monotonic() - began)

    def close(self) -> None:
        """Forget the state."""
        self._closed = True
        self._executor.state.clear()
