"""The tools of the coding environment: the agent's Python, commands of a shell, and files, in one sandbox."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from envtorch.envs import file_answers
from envtorch.envs.coding_env.models import CodeObservation, CodeToolObservation
from envtorch.envs.tool_arguments import FILE_TOOLS, ToolArguments
from envtorch.errors import OutOfResources, TimedOut
from envtorch.sandbox import AsyncSandbox, Completed, Outcome
from envtorch.tools import CallToolResult, ToolError, ToolErrorType

__all__ = ["CODE_TOOLS", "SandboxTools", "failed_call", "told_of_code"]

_SHORT_COMMAND = 8192
"""The most characters of a command that is an argument of bash; a longer one comes on its stdin."""
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}


class PythonArguments(ToolArguments):
    """Run Python code. Names it defines are there in the next call."""

    code: str = Field(description="Python code; the value of a last expression is told")


class CommandArguments(ToolArguments):
    """Run a command in bash, among the files of the Python code. Each command has a shell of its own: files
    are kept for the next one, its directory and variables are not."""

    command: str = Field(description="The command, as bash reads it; it may have several lines")
    timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Seconds until it is ended"
    )


CODE_TOOLS: dict[str, type[ToolArguments]] = {
    "python": PythonArguments,
    "bash": CommandArguments,
    **FILE_TOOLS,
}
"""The tools, with the classes of their arguments."""


class SandboxTools:
    """The tools on one sandbox. What an agent does wrong is an observation with an `error`."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def call(self, name: str, arguments: Mapping[str, Any], limit_s: float) -> CodeToolObservation:
        """What a tool other than `python` answers; a command ends within `limit_s`."""
        try:
            if name == "bash":
                return await self._bash(limit_s=limit_s, **arguments)
            answer = await getattr(self, f"_{name}")(**arguments)
        except (OSError, OutOfResources, OverflowError, TimedOut, ValueError) as error:
            return failed_call(name, ToolErrorType.EXECUTION_ERROR, file_answers.error_sentence(error))
        text = answer if isinstance(answer, str) else answer.data
        return CodeToolObservation(tool_name=name, result=answer, stdout=text)

    async def _bash(self, *, command: str, timeout_s: float | None, limit_s: float) -> CodeToolObservation:
        if "\0" in command:
            raise ValueError("a command cannot hold a NUL character")
        limit = limit_s if timeout_s is None else min(limit_s, timeout_s)
        words, stdin = ["/bin/bash", "-c", command], b""
        if len(command) > _SHORT_COMMAND:
            words, stdin = ["/bin/bash", "-c", 'eval "$(cat)"'], command.encode("utf-8", "surrogatepass")
        done = await self._sandbox.exec(words, stdin=stdin, environment=_ENVIRONMENT, timeout_s=limit)
        stdout, stderr = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
        return CodeToolObservation(
            tool_name="bash",
            result=_joined(stdout, stderr, _ending(done, limit)),
            stdout=stdout,
            stderr=stderr,
            exit_code=done.exit_status,
            outcome=done.outcome.value,
        )

    async def _read_file(self, *, path: str, first_line: int, last_line: int | None) -> str:
        data = await self._sandbox.read_file(path, limit=file_answers.READ_BYTES)
        limit = self._sandbox.policy.output_bytes
        return file_answers.selected_lines(data, path, first_line, last_line, limit)

    async def _write_file(self, *, path: str, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        await self._sandbox.write_file(path, data)
        return f"{path} was written: {len(data)} bytes."

    async def _edit_file(self, *, path: str, old: str, new: str) -> str:
        data = await self._sandbox.read_file(path, limit=file_answers.READ_BYTES)
        changed, line = file_answers.replace_once(data, path, old, new)
        await self._sandbox.write_file(path, changed)
        return f"{path} was changed at line {line}."

    async def _list_files(self, *, path: str, depth: int) -> str:
        most = file_answers.MOST_LISTED
        found = await self._sandbox.list_files(path, depth=depth, limit=most + 1)
        return file_answers.listed_files(found[:most], complete=len(found) <= most)

    async def _search(self, *, pattern: str, path: str, glob: str) -> str:
        limit = file_answers.MOST_FOUND
        found, complete = await self._sandbox.search(pattern, path, glob=glob, limit=limit)
        return file_answers.found_lines(found, complete=complete)

    async def _view_image(self, *, path: str) -> CallToolResult:
        data = await self._sandbox.read_file(path, limit=file_answers.IMAGE_BYTES)
        return file_answers.image_answer(data, path)


def told_of_code(seen: CodeObservation) -> CodeToolObservation:
    """What running code did, as the answer of the tool `python`."""
    ending = "" if seen.exit_code == 0 else f"[exit code {seen.exit_code}]"
    told = _joined(seen.stdout, seen.value or "", seen.stderr, ending)
    return CodeToolObservation(tool_name="python", result=told, **dict(seen))


def failed_call(name: str, kind: ToolErrorType, message: str) -> CodeToolObservation:
    """A call that gave no result."""
    error = ToolError(error_type=kind, message=message)
    return CodeToolObservation(tool_name=name, error=error, stderr=message, exit_code=1, outcome="error")


def _joined(*parts: str) -> str:
    return "\n".join(part.rstrip("\n") for part in parts if part)


def _ending(done: Completed, limit_s: float) -> str:
    if done.outcome is Outcome.TIMED_OUT:
        return f"[ended after {limit_s:g} s]"
    return "" if done.exit_status == 0 else f"[exit code {done.exit_status}]"
