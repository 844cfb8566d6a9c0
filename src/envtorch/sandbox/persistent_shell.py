"""The owner's side of a persistent shell: sends commands, reads reports, interrupts what takes too long."""

import contextlib
import os
import re
import secrets
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envtorch.errors import EnvironmentFailed

from .guest.shell_process import ShellEnds
from .head_and_tail import HeadAndTail
from .workspace_channel import WorkspaceChannel, out_of_resources

__all__ = ["PersistentShell", "ShellAnswer", "ShellReport", "StartFileFailed"]

_START_S = 30.0
_CHUNK = 1 << 16
_SHORT_COMMAND = 2048
"""Bash reads a socket byte by byte: longer commands are put into a file."""
_MOST_REPORT = 16384
_STATUS = re.compile(rb"[0-9]{1,3}")
_MOST_DRAINED = 256
_INTERRUPT = b"\x03"


@dataclass(frozen=True, slots=True)
class ShellReport:
    """The end of a command as the shell told it; `ended` when there was no report but the shell's end."""

    status: int | None
    directory: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ShellAnswer:
    """What became of one command."""

    report: ShellReport | None
    """None while a program on the terminal goes on."""
    output: HeadAndTail
    timed_out: bool = False


class StartFileFailed(Exception):
    """~/.bashrc ended the shell, or did not come to an end; `status` is the shell's, if it has one."""

    def __init__(self, status: int | None) -> None:
        super().__init__("~/.bashrc ended the shell, or did not come to an end")
        self.status = status


class PersistentShell:
    """One bash, its terminal, its sockets and its output. Used by one thread at a time.

    A report counts only with the nonce of the present command, and once. The nonce is sent behind the command
    and read by bash when the command has ended. A shell whose report is malformed is ended.
    """

    def __init__(
        self,
        channel: WorkspaceChannel,
        plan: Mapping[str, Any],
        *,
        grace_s: float,
        put_file: Callable[[str, bytes], None],
    ) -> None:
        self._channel = channel
        self._grace_s = grace_s
        self._put_file = put_file
        self.plan = dict(plan)
        self.job = f"shell-{secrets.token_hex(4)}"
        channel.expect(self.job)
        try:
            _, given = channel.ask({"op": "shell", "job": self.job, "plan": self.plan})
        except OSError as error:
            channel.forget(self.job)
            if refused := out_of_resources("a shell", error.errno):
                raise refused from error
            raise EnvironmentFailed(f"no shell could be started: {error}. Start a new session") from error
        self._ends = ShellEnds(*given)
        for descriptor in self._ends.all():
            os.set_blocking(descriptor, False)
        self._unread = b""
        self._nonce: bytes | None = None
        """What the report that is waited for begins with; None when none is due."""
        self.on_terminal: Callable[[bytes], None] = lambda data: None
        """Called with what programs write to the terminal itself."""
        self.directory = self.plan["directory"]
        self.is_busy = False
        """A program has the terminal, and the shell waits for its end."""
        with contextlib.suppress(OSError):  # it has ended already: the missing report says so
            os.write(self._ends.commands, self._expect_report())
        report, _ = self._await_report(HeadAndTail(1024), time.monotonic() + _START_S)
        if report is None or report.ended:
            end = time.monotonic() + self._grace_s
            status = None if report is None else self._channel.await_exit(self.job, end)
            self.close()
            if self.plan["start_file"]:
                raise StartFileFailed(status)
            raise EnvironmentFailed(
                f"no shell could be started: the root needs {self.plan['program']}, at least version 4.4"
            )

    def take_background(self, limit: int) -> HeadAndTail:
        """What background jobs have written since the last command."""
        found = HeadAndTail(limit)
        self._drain(found)
        return found

    def run(self, command: str, *, mode: str, timeout_s: float, limit: int) -> ShellAnswer:
        """Run one command and wait for its end; interrupt it when the time is over.

        Mode `n` keeps its output, `t` gives it the terminal and returns at the deadline without interrupting
        it, `q` leaves no trace in history and status.
        """
        output = HeadAndTail(limit)
        self._send(command, mode)
        report, _ = self._await_report(output, time.monotonic() + timeout_s)
        if report is None and mode == "t":
            self.is_busy = True
            return ShellAnswer(None, output)
        timed_out = report is None
        if report is None:
            report = self.interrupt(output)
        elif report.ended:
            report = self._await_end(output, time.monotonic() + timeout_s)
        return ShellAnswer(report, output, timed_out)

    def type_keys(self, data: bytes) -> None:
        """Type on the terminal. Raises `BlockingIOError` when nobody reads what was typed before."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._ends.terminal, view) :]

    def watch_terminal(self, *, quiet_s: float, timeout_s: float) -> ShellReport | None:
        """Read the terminal until it has been quiet for a while; the report if the program ended."""
        output = HeadAndTail(1024)
        end = time.monotonic() + timeout_s
        while (now := time.monotonic()) < end:
            report, read = self._await_report(output, min(end, now + quiet_s))
            if report is not None:
                self.is_busy = False
                self._await_report(output, time.monotonic() + quiet_s / 4)  # the terminal's last bytes
                return report
            if not read:
                break
        return None

    def interrupt(self, output: HeadAndTail) -> ShellReport:
        """Stop the present command: Ctrl-C, then SIGINT, then SIGKILL, at last the end of the shell."""
        self.is_busy = False
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._ends.terminal, _INTERRUPT)
        for number in (signal.SIGINT, signal.SIGKILL):
            report, _ = self._await_report(output, time.monotonic() + self._grace_s)
            if report is not None:
                return report
            self._channel.tell({"op": "interrupt", "job": self.job, "number": int(number)})
        report, _ = self._await_report(output, time.monotonic() + self._grace_s)
        if report is not None and not report.ended:
            return report
        return self._give_up()

    def _give_up(self) -> ShellReport:
        self._channel.tell({"op": "signal", "job": self.job, "number": int(signal.SIGKILL)})
        return ShellReport(None, self.directory, ended=True)

    def _send(self, command: str, mode: str) -> None:
        if "\0" in command:
            raise ValueError("a command cannot hold a NUL character")
        text = command.encode("utf-8", "surrogatepass")
        if len(text) > _SHORT_COMMAND:
            path = f"/dev/shm/.command-{self.job}"  # noqa: S108  of the session, not of this machine
            self._put_file(path, text)
            text, mode = path.encode(), mode + "f"
        os.write(self._ends.commands, mode.encode() + b"\0" + text + b"\0" + self._expect_report())

    def _expect_report(self) -> bytes:
        """Choose the nonce of the next report; what is to be sent of it."""
        self._unread = b""
        self._nonce = secrets.token_hex(16).encode()
        return self._nonce + b"\0"

    def _await_report(self, output: HeadAndTail, deadline: float) -> tuple[ShellReport | None, bool]:
        """The next report, None at the deadline; and whether anything was written meanwhile."""
        waiting = select.poll()
        ends = self._ends
        for descriptor in (ends.reports, ends.output, ends.terminal):
            waiting.register(descriptor, select.POLLIN)
        wrote = False
        while (left := deadline - time.monotonic()) > 0:
            for descriptor, event in waiting.poll(left * 1000):
                if descriptor == ends.reports:
                    report = self._read_report()
                    if report is not None:
                        self._drain(output)
                        return report, wrote
                elif self._pull(descriptor, output):
                    wrote = True
                elif not event & select.POLLIN:
                    waiting.unregister(descriptor)  # the terminal hangs up when nobody has it open
        return None, wrote

    def _read_report(self) -> ShellReport | None:
        try:
            data = os.read(self._ends.reports, _CHUNK)
        except BlockingIOError:
            return None
        except ConnectionError:
            data = b""
        if not data:
            return ShellReport(None, self.directory, ended=True)
        if self._nonce is None:
            return None
        begin = b"\0" + self._nonce + b"\0"
        self._unread += data
        _, found, rest = self._unread.partition(begin)
        if not found:  # not of this command: only what may be the beginning of its report is kept
            self._unread = self._unread[1 - len(begin) :]
            return None
        status, *others = rest[: _MOST_REPORT + 1].split(b"\0", 2)
        if len(others) == 2:
            return self._take_report(status, others[0])
        if len(rest) > _MOST_REPORT:
            return self._give_up()
        self._unread = begin + rest
        return None

    def _take_report(self, status: bytes, directory: bytes) -> ShellReport | None:
        self._nonce = None
        if status == b"left":  # a stray `break` left the loop: an empty line brings bash back to it
            with contextlib.suppress(OSError):
                os.write(self._ends.commands, self._expect_report())
                os.write(self._ends.terminal, b"\n")
            return None
        if not _STATUS.fullmatch(status) or int(status) > 255:
            return self._give_up()
        self.directory = directory.decode(errors="replace") or "/"
        return ShellReport(int(status), self.directory)

    def _await_end(self, output: HeadAndTail, deadline: float) -> ShellReport:
        """The shell is gone, or has become another program (`exec`): read on until that has ended."""
        while time.monotonic() < deadline:
            status = self._channel.await_exit(self.job, min(deadline, time.monotonic() + 0.02))
            self._drain(output)
            if status is not None:
                return ShellReport(status, self.directory, ended=True)
        self._channel.tell({"op": "signal", "job": self.job, "number": int(signal.SIGKILL)})
        return ShellReport(None, self.directory, ended=True)

    def _drain(self, output: HeadAndTail) -> None:
        for descriptor in (self._ends.output, self._ends.terminal):
            for _ in range(_MOST_DRAINED):
                if not self._pull(descriptor, output):
                    break

    def _pull(self, descriptor: int, output: HeadAndTail) -> bool:
        try:
            data = os.read(descriptor, _CHUNK)
        except OSError:
            return False
        if descriptor == self._ends.terminal:
            self.on_terminal(data)
        else:
            output.add(data)
        return bool(data)

    def close(self) -> None:
        """End the shell and what is in its process group."""
        self._channel.tell({"op": "signal", "job": self.job, "number": int(signal.SIGKILL)})
        self._channel.forget(self.job)
        self._ends.close()
