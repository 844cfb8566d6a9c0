"""The blocking sandbox."""

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from . import flows, fork_flows, grading, operating, running, sharing
from .core import Core
from .driver import Flow, T, drive
from .policy import Policy
from .protections import Report
from .results import Completed, FileInfo, Result, Variable, Verdict
from .sandbox_phases import SandboxPhase
from .shell_results import FoundLine
from .submission import READ_LIMIT, SPOILED, Submission, freeze, thaw

__all__ = ["Sandbox"]


class Sandbox:
    """A live Python interpreter behind a kernel boundary.

        with Sandbox(Policy(memory_bytes=256 * 2**20)) as sandbox:
            sandbox.run("x = 40")
            assert sandbox.run("x + 2").json() == 42

    State is kept between runs. One call at a time; `interrupt` may come from any thread.
    """

    def __init__(
        self, policy: Policy | None = None, *, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._core = drive(flows.open_sandbox(policy or Policy()))
        self._core.functions.update(functions or {})
        self._finalizer = weakref.finalize(self, _abandon, self._core)

    @classmethod
    def _around(cls, core: Core) -> Self:
        sandbox = cls.__new__(cls)
        sandbox._lock = threading.Lock()
        sandbox._core = core
        sandbox._finalizer = weakref.finalize(sandbox, _abandon, core)
        return sandbox

    @property
    def policy(self) -> Policy:
        return self._core.policy

    @property
    def alive(self) -> bool:
        """Whether the interpreter, and its state, are still there."""
        return not (self._core.closed or self._core.lost)

    def report(self) -> Report:
        """What protects this sandbox, layer by layer."""
        return self._core.report()

    def run(self, code: str, *, timeout_s: float | None = None) -> Result:
        """Run Python code; the outcome is in the result, whatever the code did.

        Raises `SessionLost` only when an earlier run has already cost the interpreter its life.
        """
        return self._drive(running.run(self._core, code, timeout_s=timeout_s))

    def exec(
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
        return self._drive(flow)

    def write_file(self, path: str, data: bytes | str) -> None:
        """Make or replace a file; a relative path is one of the workspace."""
        self._drive(operating.write_file(self._core, path, data.encode() if isinstance(data, str) else data))

    def read_file(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        """The bytes of a file. Raises `OSError`, or `OverflowError` when there are more than `limit`."""
        return self._drive(operating.read_file(self._core, path, limit=limit))

    def list_files(
        self, path: str = ".", *, depth: int | None = None, limit: int = operating.LIST_LIMIT
    ) -> list[FileInfo]:
        """What is below a folder, in order: `depth` levels, or all, and at most `limit` entries."""
        return self._drive(operating.list_files(self._core, path, depth=depth, limit=limit))

    def search(
        self, pattern: str, path: str = ".", *, glob: str = "", limit: int = 100
    ) -> tuple[list[FoundLine], bool]:
        """Lines below a folder that match a regular expression, and whether those are all."""
        return self._drive(operating.search(self._core, pattern, path, glob=glob, limit=limit))

    def variables(self) -> dict[str, Variable]:
        """The names the agent has defined, and what they hold."""
        return self._drive(running.variables(self._core))

    def expose(self, name: str, function: Callable[..., Any]) -> None:
        """Make a function of the owner's callable from inside, as `name`, with JSON arguments and result."""
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no name for a function")
        self._core.functions[name] = function

    def interrupt(self) -> None:
        """Stop the code that runs now, as Ctrl-C would; its state is kept."""
        self._core.require_own_process()
        self._core.interrupted = True
        self._core.handle.signal(2)

    def fork(self, count: int = 1) -> list["Sandbox"]:
        """`count` exact copies: memory copy-on-write and files, each isolated, none bound to our life.

        Processes and threads of the agent are stopped while the files are copied, and are not in the copies.
        An exposed function may fork the sandbox that called it: the copies stand where the call was made,
        with its arguments in their memory, and do not go on from there. They wait for what to run.
        """
        flow = fork_flows.fork(self._core, count)
        made = drive(flow) if self._core.phase is SandboxPhase.CALLING else self._drive(flow)
        return [Sandbox._around(core) for core in made]

    def share(self, name: str, text: sharing.SharedText) -> None:
        """Define `name` inside as a `str`; forks share its characters copy-on-write."""
        self._drive(sharing.share(self._core, name, text))

    def copy(self) -> "Sandbox":
        """A sandbox with a fresh interpreter and a copy of our files, as they are at one moment."""
        return Sandbox._around(self._drive(fork_flows.copy_files(self._core)))

    def grade(
        self,
        checker: Callable[[Submission], Any] | str,
        *,
        files: Mapping[str, bytes | str] | None = None,
        timeout_s: float | None = None,
    ) -> Verdict:
        """Judge a frozen copy of this sandbox; see `envtorch.sandbox.grading` for what a checker is.

        Every process of this sandbox is stopped meanwhile, so it cannot be used from within the checker.
        `files` are those of a checker that is a script. A sandbox in a state that cannot be copied scores 0.
        """
        self._core.require_open()
        with Sandbox(self.policy) as bench:
            try:
                frozen = self._drive(freeze(self._core))
            except SPOILED as error:
                return grading.failed(f"the sandbox could not be copied: {error}")
            try:
                submission = Submission(frozen)
                if callable(checker):
                    return _grade_by_function(submission, checker)
                return _grade_by_script(submission, bench, checker, files or {}, timeout_s)
            finally:
                self._drive(thaw(self._core, frozen))

    def close(self) -> None:
        """End everything in the sandbox. Its forks live on."""
        self._finalizer.detach()
        if self._core.owner == os.getpid():
            self._drive(flows.close(self._core))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self, flow: Flow[T]) -> T:
        self._core.require_own_process()
        with self._lock:
            return drive(flow)


def _abandon(core: Core) -> None:
    """Close a sandbox that nobody holds any more."""
    drive(flows.close(core))


def _grade_by_function(submission: Submission, checker: Callable[[Submission], Any]) -> Verdict:
    try:
        return grading.judge(checker(submission))
    except Exception as error:
        if error is submission.failure:
            return grading.failed(f"the submission could not be checked: {error}")
        raise


def _grade_by_script(
    submission: Submission,
    bench: Sandbox,
    script: str,
    files: Mapping[str, bytes | str],
    timeout_s: float | None,
) -> Verdict:
    answers = grading.submission_answers(
        submission.read_file,
        submission.write_file,
        submission.list_files,
        lambda code, limit: submission.run(code, timeout_s=limit),
        lambda command, limit: submission.exec(command, timeout_s=limit),
    )
    for name, answer in answers.items():
        bench.expose(f"_submission_{name}", answer)
    for path, data in files.items():
        bench.write_file(path, data)
    bench.run(grading.PRELUDE)
    return grading.judge_result(bench.run(script, timeout_s=timeout_s))
