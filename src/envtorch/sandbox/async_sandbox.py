"""The async sandbox: the same names as the blocking one, and it never blocks the event loop."""

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from envtorch.errors import SessionLost

from . import flows, fork_flows, grading, operating, running, sharing
from .core import Core
from .driver import Flow, T, drive_async
from .policy import Policy
from .protections import Report
from .results import Completed, FileInfo, Result, Variable, Verdict
from .sandbox_phases import SandboxPhase
from .shell_results import FoundLine
from .submission import READ_LIMIT, SPOILED, AsyncSubmission, Frozen, freeze, thaw

__all__ = ["AsyncSandbox"]


class AsyncSandbox:
    """A live Python interpreter behind a kernel boundary, awaited.

        async with AsyncSandbox() as sandbox:
            await sandbox.run("x = 40")

    It starts on entering the context, or with `await AsyncSandbox.open(...)`.
    """

    def __init__(
        self, policy: Policy | None = None, *, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self._policy = policy or Policy()
        self._functions = dict(functions or {})
        self._lock = asyncio.Lock()
        self._opened: Core | None = None

    @classmethod
    async def open(
        cls, policy: Policy | None = None, *, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> Self:
        """A sandbox that has started; close it when done."""
        sandbox = cls(policy, functions=functions)
        return await sandbox.__aenter__()

    @classmethod
    def _around(cls, core: Core) -> Self:
        sandbox = cls(core.policy)
        sandbox._opened = core
        return sandbox

    @property
    def _core(self) -> Core:
        if self._opened is None:
            raise SessionLost("the sandbox has not started: use `async with`, or AsyncSandbox.open()")
        return self._opened

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def alive(self) -> bool:
        """Whether the interpreter, and its state, are there."""
        return self._opened is not None and not (self._opened.closed or self._opened.lost)

    def report(self) -> Report:
        """What protects this sandbox, layer by layer."""
        return self._core.report()

    async def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run Python code; the outcome is in the result, whatever the code did."""
        return await self._drive(running.run(self._core, code, timeout_s=timeout_s))

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Completed:
        """Run a program in the workspace, under the same walls and limits."""
        flow = operating.execute(
            self._core, command, stdin=stdin, environment=environment, timeout_s=timeout_s
        )
        return await self._drive(flow)

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Make or replace a file; a relative path is one of the workspace."""
        content = data.encode() if isinstance(data, str) else data
        await self._drive(operating.write_file(self._core, path, content))

    async def read_file(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        """The bytes of a file. Raises `OSError`, or `OverflowError` when there are more than `limit`."""
        return await self._drive(operating.read_file(self._core, path, limit=limit))

    async def list_files(
        self, path: str = ".", *, depth: int | None = None, limit: int = operating.LIST_LIMIT
    ) -> list[FileInfo]:
        """What is below a folder, in order: `depth` levels, or all, and at most `limit` entries."""
        return await self._drive(operating.list_files(self._core, path, depth=depth, limit=limit))

    async def search(
        self, pattern: str, path: str = ".", *, glob: str = "", limit: int = 100
    ) -> tuple[list[FoundLine], bool]:
        """Lines below a folder that match a regular expression, and whether those are all."""
        return await self._drive(operating.search(self._core, pattern, path, glob=glob, limit=limit))

    async def variables(self) -> dict[str, Variable]:
        """The names the agent has defined, and what they hold."""
        return await self._drive(running.variables(self._core))

    def expose(self, name: str, function: Callable[..., Any]) -> None:
        """Make a function of the owner's, plain or async, callable from inside as `name`."""
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no name for a function")
        self._core.functions[name] = function

    def interrupt(self) -> None:
        """Stop the code that runs now, as Ctrl-C would; its state is kept."""
        self._core.require_own_process()
        self._core.interrupted = True
        self._core.handle.signal(2)

    async def fork(self, count: int = 1) -> list["AsyncSandbox"]:
        """`count` exact copies: memory copy-on-write and files, each isolated, none bound to our life.

        From within an exposed function too: see `Sandbox.fork`.
        """
        flow = fork_flows.fork(self._core, count)
        made = await (drive_async(flow) if self._core.phase is SandboxPhase.CALLING else self._drive(flow))
        return [AsyncSandbox._around(core) for core in made]

    async def share(self, name: str, text: sharing.SharedText) -> None:
        """Define `name` inside as a `str`; forks share its characters copy-on-write."""
        await self._drive(sharing.share(self._core, name, text))

    async def copy(self) -> "AsyncSandbox":
        """A sandbox with a fresh interpreter and a copy of our files, as they are at one moment."""
        return AsyncSandbox._around(await self._drive(fork_flows.copy_files(self._core)))

    async def grade(
        self,
        checker: Callable[[AsyncSubmission], Any] | str,
        *,
        files: Mapping[str, bytes | str] | None = None,
        timeout_s: float | None = None,
    ) -> Verdict:
        """Judge a frozen copy of this sandbox; see `envtorch.sandbox.grading` for what a checker is."""
        self._core.require_open()
        async with AsyncSandbox(self.policy) as bench:
            try:
                frozen = await self._drive(freeze(self._core))
            except SPOILED as error:
                return grading.failed(f"the sandbox could not be copied: {error}")
            try:
                submission = _submission(frozen)
                if callable(checker):
                    return await _grade_by_function(submission, checker)
                return await _grade_by_script(submission, bench, checker, files or {}, timeout_s)
            finally:
                await self._drive(thaw(self._core, frozen))

    async def close(self) -> None:
        """End everything in the sandbox. Its forks live on."""
        if self._opened is not None and self._opened.owner == os.getpid():
            # Shielded: a task that is cancelled while it closes would leave half a sandbox behind.
            await asyncio.shield(asyncio.ensure_future(self._drive(flows.close(self._opened))))

    async def __aenter__(self) -> Self:
        if self._opened is None:
            self._opened = await drive_async(flows.open_sandbox(self._policy))
            self._opened.functions.update(self._functions)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _drive(self, flow: Flow[T]) -> T:
        self._core.require_own_process()
        async with self._lock:
            return await drive_async(flow)


def _submission(frozen: Frozen) -> AsyncSubmission:
    lock = asyncio.Lock()

    async def drive_in_turn(flow: Flow[Any]) -> Any:
        async with lock:
            return await drive_async(flow)

    return AsyncSubmission(frozen, drive_in_turn)


async def _grade_by_function(
    submission: AsyncSubmission, checker: Callable[[AsyncSubmission], Any]
) -> Verdict:
    try:
        said = checker(submission)
        return grading.judge(await said if inspect.isawaitable(said) else said)
    except Exception as error:
        if error is submission.failure:
            return grading.failed(f"the submission could not be checked: {error}")
        raise


async def _grade_by_script(
    submission: AsyncSubmission,
    bench: AsyncSandbox,
    script: str,
    files: Mapping[str, bytes | str],
    timeout_s: float | None,
) -> Verdict:
    loop = asyncio.get_running_loop()

    def blocking(method: Callable[..., Any]) -> Callable[..., Any]:
        """Exposed functions run in a thread; the submission belongs to this loop."""
        return lambda *args, **kwargs: asyncio.run_coroutine_threadsafe(
            method(*args, **kwargs), loop
        ).result()

    run, execute = blocking(submission.run), blocking(submission.exec)
    answers = grading.submission_answers(
        blocking(submission.read_file),
        blocking(submission.write_file),
        blocking(submission.list_files),
        lambda code, limit: run(code, timeout_s=limit),
        lambda command, limit: execute(command, timeout_s=limit),
    )
    for name, answer in answers.items():
        bench.expose(f"_submission_{name}", answer)
    for path, data in files.items():
        await bench.write_file(path, data)
    await bench.run(grading.PRELUDE)
    return grading.judge_result(await bench.run(script, timeout_s=timeout_s))
