"""Runs one command and ends it, and everything it started, when the owner is gone.

    python -I -S warden.py OWNER_PID GRACE_S -- COMMAND...

The owner is the process that started the warden. It is watched by a pidfd, because the kernel's
parent-death signal is tied to the *thread* that started a child, and providers are started from worker
threads that end. The command itself gets the parent-death signal, from a warden with a single thread:
if the warden is killed, the command dies too. The warden is the reaper of everything below it, so that
nothing escapes by starting a daemon.

Only the standard library: this file runs with no site-packages, on any Python 3.9 or newer.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
POLL_S = 0.5
HURRY_AFTER_S = 1.0
"""After how long a command that was asked to end is asked again: an environment server then waits no longer
for its sessions and calls."""


def prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def watch(owner: int) -> "int | None":
    """A descriptor that becomes readable when the owner ends; None where there is no such thing."""
    try:
        return os.pidfd_open(owner)
    except (AttributeError, OSError):
        return None


def children() -> "list[int]":
    """What is left below this process, once the command itself is gone."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def end(command: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ask the command to end, once more if it does not, then kill whatever is still there."""
    for patience_s in (min(HURRY_AFTER_S, grace_s), grace_s):
        if command.poll() is None:
            command.terminate()
            with suppress(subprocess.TimeoutExpired):
                command.wait(patience_s)
    if command.poll() is None:
        command.kill()
        command.wait()
    # Killing a process hands its children to this one: the last round finds none.
    while left := children():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)


def main(owner: int, grace_s: float, arguments: "list[str]") -> int:
    stop_read, stop_write = os.pipe()
    os.set_blocking(stop_write, False)
    signal.set_wakeup_fd(stop_write)
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to wake the poll
    owner_fd = watch(owner)
    if os.getppid() != owner:  # it ended before it could be watched
        return 1
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    inherited = [int(fd) for fd in os.listdir("/dev/fd") if int(fd) > 2 and _open(int(fd))]
    mine = {stop_read, stop_write, owner_fd}
    try:
        command = subprocess.Popen(  # noqa: S603
            arguments,
            pass_fds=[fd for fd in inherited if fd not in mine],
            # Its own group: a Ctrl-C in the owner's terminal is the owner's to handle.
            start_new_session=True,
            # Safe here: this process has one thread.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    except OSError as error:
        sys.stderr.write(f"{arguments[0]}: {error.strerror}\n")
        return 127
    for fd in inherited:  # the command has them; a copy here would keep its port open after it ended
        if fd not in mine:
            os.close(fd)
    waiting = [stop_read] if owner_fd is None else [stop_read, owner_fd]
    while command.poll() is None and not asked:
        ready, _, _ = select.select(waiting, [], [], POLL_S if owner_fd is None else None)
        if owner_fd in ready or os.getppid() != owner:
            break
        if stop_read in ready:
            os.read(stop_read, 512)
    end(command, grace_s)
    code = command.returncode
    return 128 - code if code < 0 else code


def _open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:  # the descriptor that listed the others
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[4:]))
