"""`PyExecutor`: an agent's Python, with OpenEnv's calls, in a sandbox of ours."""

from collections.abc import Sequence

from envtorch.compat.types import CodeExecResult
from envtorch.sandbox import Policy, Sandbox

__all__ = ["PyExecutor"]

PRELUDE = """
import json, traceback
def format_exc(): return traceback.format_exc()
def safe_json_dumps(value): return json.dumps(value, default=repr)
"""
"""Two functions that code written for OpenEnv may call."""


class PyExecutor:
    """Runs Python and keeps its names from one run to the next.

    The code is ordinary Python behind a kernel boundary, where OpenEnv's is an interpreter with a list of
    modules: whatever is installed can be imported, and `additional_imports` are imported ahead.
    """

    def __init__(
        self, additional_imports: Sequence[str] | None = None, *, policy: Policy | None = None
    ) -> None:
        self._sandbox = Sandbox(policy)
        self._sandbox.run(PRELUDE)
        for name in additional_imports or ():
            if all(part.isidentifier() for part in name.split(".")):  # "*" and "numpy.*" need nothing
                self._sandbox.run(f"try:\n    import {name}\nexcept ImportError:\n    pass")

    def run(self, code: str) -> CodeExecResult:
        """What the code printed, and the value of its last expression; its error, if it raised."""
        result = self._sandbox.run(code)
        value = result.value_json if result.value_json is not None else result.value
        printed = [part for part in (result.stdout, value) if part]
        failed = [result.stderr] if result.stderr else []
        if result.exception is not None:
            failed.append(result.exception.traceback)
        elif not result.ok:
            failed.append(f"the code was ended: {result.outcome.value}")
        return CodeExecResult(
            stdout="\n".join(printed),
            stderr="\n".join(failed),
            exit_code=0 if result.ok else result.exit_status or 1,
        )

    def close(self) -> None:
        """Let the interpreter go; it goes by itself when this object does."""
        self._sandbox.close()
