"""Judging a frozen copy of a sandbox.

The copy is taken first: see `submission` for what it is made of. A checker comes in one of two forms.

* A function of the owner's gets the copy as a `Submission`, and returns its verdict. It runs in the owner's
  process, so its own files and its verdict never enter a sandbox unless it writes them there.
* A script, as text, runs in a sandbox of its own in which no code of the agent's has ever run. It reaches the
  copy through the object `submission`: `read_file`, `write_file`, `list_files`, `exec`, `run`, as plain data.
  Its last expression is the verdict, and travels over the socket of that sandbox.

A verdict is a number, a truth value, or a mapping with `score` and, if wanted, `passed`, `why`, `details`. A
script that raises, times out or says something else scores 0, and so does a sandbox that cannot be copied or
asked. Of a function, its own errors are raised.
"""

import base64
import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from envtorch.errors import OutOfResources

from .results import Completed, FileInfo, Result, Verdict

__all__ = ["PRELUDE", "failed", "judge", "judge_result", "submission_answers"]

PRELUDE = """
class Submission:
    \"\"\"The frozen copy of the agent's sandbox.\"\"\"

    def read_file(self, path):
        import base64
        answer = _submission_read_file(path)
        if "error" in answer:
            raise OSError(answer["error"])
        return base64.b64decode(answer["data"])

    def write_file(self, path, data):
        import base64
        data = data.encode() if isinstance(data, str) else data
        answer = _submission_write_file(path, base64.b64encode(data).decode())
        if "error" in answer:
            raise OSError(answer["error"])

    def list_files(self, path="."):
        return _submission_list_files(path)

    def run(self, code, timeout_s=10.0):
        return _submission_run(code, timeout_s)

    def exec(self, command, timeout_s=10.0):
        return _submission_exec(command, timeout_s)


submission = Submission()
del Submission
"""


def judge(said: Any) -> Verdict:
    """A verdict out of what a checker said; what cannot be understood scores 0."""
    if isinstance(said, Verdict):
        return said
    fields = dict(said) if isinstance(said, Mapping) else {"score": said}
    unknown = set(fields) - {"score", "passed", "why", "details"}
    score = _score_of(fields.get("score"))
    if unknown or score is None:
        return failed(f"the checker's verdict cannot be understood: {_shown(said)}")
    passed = fields.get("passed", score > 0)
    return Verdict(
        score=score, passed=bool(passed), why=str(fields.get("why", "")), details=fields.get("details")
    )


def _score_of(said: Any) -> float | None:
    """A finite number, or None."""
    with contextlib.suppress(OverflowError):  # an integer that no float can hold
        if isinstance(said, int | float) and math.isfinite(said):
            return float(said)
    return None


def _shown(said: Any) -> str:
    try:
        return str(said)[:200]
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, or deep nesting
        return f"it cannot be shown: {error}"


def judge_result(result: Result) -> Verdict:
    """A verdict out of the run of a checker script."""
    if not result.ok:
        why = result.exception.traceback if result.exception is not None else result.outcome.value
        return failed(f"the checker did not finish: {why}")
    if result.value_json is None:
        return failed("the checker's last line is no expression with a plain value")
    try:
        return judge(result.json())
    except ValueError as error:
        return failed(f"the checker's verdict cannot be understood: {error}")


def failed(why: str) -> Verdict:
    """A score of 0, and the reason."""
    return Verdict(score=0.0, passed=False, why=why)


def submission_answers(
    read_file: Callable[[str], bytes],
    write_file: Callable[[str, bytes], None],
    list_files: Callable[[str], list[FileInfo]],
    run: Callable[[str, float], Result],
    execute: Callable[[list[str], float], Completed],
) -> dict[str, Callable[..., Any]]:
    """What a checker script may ask of the frozen copy, as functions with plain answers."""

    def answer_read(path: str) -> dict[str, str]:
        try:
            return {"data": base64.b64encode(read_file(path)).decode()}
        except (OSError, OverflowError) as error:
            return {"error": str(error)}

    def answer_write(path: str, data: str) -> dict[str, str]:
        try:
            write_file(path, base64.b64decode(data))
        except (OSError, OutOfResources) as error:
            return {"error": str(error)}
        return {}

    def answer_list(path: str) -> list[dict[str, Any]]:
        return [{"path": entry.path, "size": entry.size, "kind": entry.kind} for entry in list_files(path)]

    def answer_run(code: str, timeout_s: float) -> dict[str, Any]:
        done = run(code, timeout_s)
        return {
            "outcome": done.outcome.value,
            "stdout": done.stdout,
            "stderr": done.stderr,
            "value": done.value_json,
        }

    def answer_exec(command: list[str], timeout_s: float) -> dict[str, Any]:
        done = execute(command, timeout_s)
        texts = {
            "stdout": done.stdout.decode(errors="replace"),
            "stderr": done.stderr.decode(errors="replace"),
        }
        return {"outcome": done.outcome.value, "exit_status": done.exit_status, **texts}

    answers = (answer_read, answer_write, answer_list, answer_run, answer_exec)
    return dict(zip(("read_file", "write_file", "list_files", "run", "exec"), answers, strict=True))
