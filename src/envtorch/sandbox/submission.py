"""What a checker gets of an agent's sandbox: a copy of its files, and a fork of its interpreter beside it.

The files are those of a fresh sandbox, in which no process and no descriptor of the agent's has ever been:
`read_file`, `write_file`, `list_files` and `exec` work there. A fork of the agent's interpreter is used by
`run` and `variables` only. It has a copy of the files of its own and is stopped otherwise. What it answers is
the agent's word.
"""

import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envtorch.errors import EnvironmentFailed, OutOfResources, SessionLost, TimedOut

from . import operating, running
from .core import Core
from .driver import Flow, T, drive
from .flows import close, order
from .fork_flows import copy_moving_files, fork
from .results import Completed, FileInfo, Result, Variable

__all__ = ["SPOILED", "AsyncSubmission", "Frozen", "Submission", "freeze", "thaw"]

READ_LIMIT = 64 * 1024 * 1024
SPOILED = (EnvironmentFailed, OutOfResources, TimedOut, SessionLost)
"""How it shows that an agent has brought its sandbox into a state that cannot be copied."""
_FORK_TIMEOUT_S = 5.0


@dataclass(slots=True, eq=False)
class Frozen:
    """The two sandboxes behind a submission."""

    files: Core
    interpreter: Core | None
    """None where no fork could be made: `run` finds a fresh interpreter and the files then."""


def freeze(core: Core) -> Flow[Frozen]:
    """Copy a sandbox at rest, and stop every process in it until `thaw`. Raises one of `SPOILED`."""
    interpreter: Core | None = None
    if not core.lost and core.report().protects("fork"):
        with contextlib.suppress(*SPOILED):
            (interpreter,) = yield from fork(core, 1, timeout_s=_FORK_TIMEOUT_S)
            interpreter.functions.clear()
    try:
        if interpreter is not None:
            yield from order(interpreter, "freeze", "frozen")
        yield from order(core, "freeze", "frozen")
        return Frozen((yield from copy_moving_files(core)), interpreter)
    except BaseException:
        yield from thaw(core, None)
        if interpreter is not None:
            yield from close(interpreter)
        raise


def thaw(core: Core, frozen: Frozen | None) -> Flow[None]:
    """Close the copies, and let the processes of the original go on."""
    if frozen is not None:
        for copy in (frozen.files, frozen.interpreter):
            if copy is not None:
                yield from close(copy)
    if not core.closed:
        core.handle.tell({"op": "thaw"})


def _run(frozen: Frozen, code: str, timeout_s: float | None) -> Flow[Result]:
    return (yield from _awake(frozen, lambda core: running.run(core, code, timeout_s=timeout_s)))


def _variables(frozen: Frozen) -> Flow[dict[str, Variable]]:
    return (yield from _awake(frozen, running.variables))


def _awake(frozen: Frozen, work: Callable[[Core], Flow[T]]) -> Flow[T]:
    """Let the agent's interpreter run for as long as `work` takes."""
    if frozen.interpreter is None:
        return (yield from work(frozen.files))
    frozen.interpreter.handle.tell({"op": "thaw"})
    try:
        return (yield from work(frozen.interpreter))
    finally:
        yield from order(frozen.interpreter, "freeze", "frozen")


def _execute(
    frozen: Frozen,
    command: Sequence[str],
    stdin: bytes,
    environment: Mapping[str, str] | None,
    timeout_s: float | None,
) -> Flow[Completed]:
    """Run a program, and end whatever it leaves running: it must not wait for the checker's next file."""
    try:
        return (
            yield from operating.execute(
                frozen.files, command, stdin=stdin, environment=environment, timeout_s=timeout_s
            )
        )
    finally:
        yield from order(frozen.files, "sweep", "swept")


class Submission:
    """A frozen copy of an agent's sandbox, as a checker sees it."""

    def __init__(self, frozen: Frozen) -> None:
        self._frozen = frozen
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        """The last error of a method. A checker that does not catch it gives a score of 0."""

    def read_file(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        """The bytes of a file. Raises `OSError`, or `OverflowError` when there are more than `limit`."""
        return self._drive(operating.read_file(self._frozen.files, path, limit=limit))

    def write_file(self, path: str, data: bytes | str) -> None:
        """Make or replace a file, for `exec` to find."""
        content = data.encode() if isinstance(data, str) else data
        self._drive(operating.write_file(self._frozen.files, path, content))

    def list_files(self, path: str = ".") -> list[FileInfo]:
        """Everything below a folder."""
        return self._drive(operating.list_files(self._frozen.files, path))

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Completed:
        """Run a program beside the files. Processes that it leaves behind are ended."""
        return self._drive(_execute(self._frozen, command, stdin, environment, timeout_s))

    def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run code in a fork of the agent's interpreter. The answer is the agent's word: it can be forged."""
        return self._drive(_run(self._frozen, code, timeout_s))

    def variables(self) -> dict[str, Variable]:
        """The names the agent has defined: its word, as with `run`."""
        return self._drive(_variables(self._frozen))

    def _drive(self, flow: Flow[T]) -> T:
        with self._lock:
            try:
                return drive(flow)
            except Exception as error:
                self.failure = error
                raise


class AsyncSubmission:
    """A frozen copy of an agent's sandbox, awaited."""

    def __init__(self, frozen: Frozen, drive_in_turn: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self._frozen = frozen
        self._drive_in_turn = drive_in_turn
        self.failure: BaseException | None = None
        """The last error of a method. A checker that does not catch it gives a score of 0."""

    async def read_file(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        """The bytes of a file. Raises `OSError`, or `OverflowError` when there are more than `limit`."""
        return await self._drive(operating.read_file(self._frozen.files, path, limit=limit))

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Make or replace a file, for `exec` to find."""
        content = data.encode() if isinstance(data, str) else data
        await self._drive(operating.write_file(self._frozen.files, path, content))

    async def list_files(self, path: str = ".") -> list[FileInfo]:
        """Everything below a folder."""
        return await self._drive(operating.list_files(self._frozen.files, path))

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Completed:
        """Run a program beside the files. Processes that it leaves behind are ended."""
        return await self._drive(_execute(self._frozen, command, stdin, environment, timeout_s))

    async def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run code in a fork of the agent's interpreter. The answer is the agent's word: it can be forged."""
        return await self._drive(_run(self._frozen, code, timeout_s))

    async def variables(self) -> dict[str, Variable]:
        """The names the agent has defined: its word, as with `run`."""
        return await self._drive(_variables(self._frozen))

    async def _drive(self, flow: Flow[T]) -> T:
        try:
            answer: T = await self._drive_in_turn(flow)
        except Exception as error:
            self.failure = error
            raise
        return answer
