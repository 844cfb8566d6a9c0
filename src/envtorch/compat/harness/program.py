"""`HarnessProcess`: a program that is talked to line by line, from whichever loop."""

import asyncio
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from envtorch.compat.harness.turns import HarnessNotRunningError, HarnessStartupError
from envtorch.settings import variables

__all__ = ["HarnessProcess"]

LAST_WORDS = 50


LAST_WORDS_S = 5.0
"""How long to wait for the end of standard error, and of the program, once standard output has ended."""


class HarnessProcess:
    """A child process with lines in and lines out. Its group is ended with it.

    Threads read its streams, so that it can be used from one loop after another.
    """

    def __init__(
        self,
        command: Sequence[str],
        cwd: str,
        env_vars: Mapping[str, str] | None = None,
        startup_timeout_s: float = 30.0,
        terminate_grace_s: float = 5.0,
    ) -> None:
        self.command = list(command)
        self.cwd = cwd
        self.env_vars = dict(env_vars or {})
        self.startup_timeout_s = startup_timeout_s
        self.terminate_grace_s = terminate_grace_s
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._complaints: deque[str] = deque(maxlen=LAST_WORDS)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def drain_stderr(self) -> str:
        """The last lines that the program wrote to its standard error."""
        return "\n".join(self._complaints)

    async def start(self, ready_check: Callable[[str], bool] | None = None) -> None:
        """Start the program and, with `ready_check`, read until a line of it says that it is ready."""
        if self.is_running():
            raise HarnessStartupError("the harness runs already")
        self._lines, self._complaints = queue.Queue(), deque(maxlen=LAST_WORDS)
        try:
            self._process = process = subprocess.Popen(  # noqa: S603, ASYNC220 - a fork, and no wait for it
                self.command,
                cwd=self.cwd,
                env={**variables(), **self.env_vars},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise HarnessStartupError(f"{self.command[0]} cannot be started: {error}") from error
        assert process.stdout is not None
        assert process.stderr is not None
        lines, complaints = self._lines, self._complaints
        errors = _read_in_background(process.stderr, complaints.append, lambda: None)

        def end() -> None:
            errors.join(LAST_WORDS_S)  # why the program ended is read before that it ended
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS_S)  # so that `is_running` is right for whoever reads the end
            lines.put(None)

        _read_in_background(process.stdout, lines.put, end)
        if ready_check is not None:
            await self._wait_until_ready(ready_check)

    async def _wait_until_ready(self, ready_check: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + self.startup_timeout_s
        try:
            while True:
                line = await self.read_line(max(deadline - time.monotonic(), 0.0))
                if line is None:
                    raise HarnessStartupError(f"the harness ended at once: {self.drain_stderr()}")
                if ready_check(line):
                    return
        except TimeoutError:
            await self.stop()
            raise HarnessStartupError(
                f"the harness was not ready within {self.startup_timeout_s:g} s: {self.drain_stderr()}"
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the program, politely first, and all that it started."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(self._end, process)

    def _end(self, process: "subprocess.Popen[str]") -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.terminate_grace_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    async def write_line(self, text: str) -> None:
        """Say one line to the program. Raises `HarnessNotRunningError`."""
        process = self._process
        if process is None or process.stdin is None or process.poll() is not None:
            raise HarnessNotRunningError("the harness does not run")
        stream = process.stdin

        def write() -> None:
            stream.write(f"{text}\n")
            stream.flush()

        try:
            await asyncio.to_thread(write)
        except (OSError, ValueError) as error:
            raise HarnessNotRunningError(f"the harness does not listen any more: {error}") from error

    async def read_line(self, timeout_s: float | None = None) -> str | None:
        """The next line; None when there are no more. Raises `TimeoutError`."""
        try:
            line = await asyncio.to_thread(self._lines.get, True, timeout_s)
        except queue.Empty:
            raise TimeoutError(f"the harness said nothing within {timeout_s} s") from None
        if line is None:
            self._lines.put(None)  # the end stays the end, for whoever reads next
        return line


def _read_in_background(
    stream: IO[str], take: Callable[[str], object], end: Callable[[], object]
) -> threading.Thread:
    def read() -> None:
        with stream, suppress(ValueError, OSError):
            for line in stream:
                take(line.rstrip("\n"))
        end()

    thread = threading.Thread(target=read, name="harness-reader", daemon=True)
    thread.start()
    return thread
