"""The keeper: the parent of a server's processes. It runs no code of the environment, so it does not fail.

It reaps what ends and tells the server how; kills what it is told to; forks a new zygote when one dies; and
when the server goes, however it goes, it ends everything and itself.
"""

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from envtorch.server.runners.process import process_zygote as zygote
from envtorch.server.runners.process.process_messages import Died, Plan, Unfit, pack, read_kill, read_plan
from envtorch.server.runners.process.process_spawning import become_subreaper

__all__ = ["main"]


class ProcessSupervisor:
    """Owns every process of one server."""

    def __init__(self, lifeline: socket.socket, spawning: socket.socket, plan: Plan) -> None:
        self._lifeline = lifeline
        self._spawning = spawning
        self._plan = plan
        self._zygote = 0
        self._warm, self._warm_here = os.pipe()
        os.set_blocking(self._warm, False)

    def serve(self) -> None:
        """Until the server is gone, or no zygote can be had."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._start_zygote()
        while True:
            ready, _, _ = select.select([self._lifeline.fileno(), woken], [], [])
            if woken in ready:
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
                if not self._reap():
                    return
            if self._lifeline.fileno() in ready and not self._obey():
                return

    def _start_zygote(self) -> None:
        keeper = os.getpid()
        self._zygote = os.fork()
        if self._zygote == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            zygote.main(keeper, self._lifeline, self._spawning, self._warm_here, self._plan)

    def _obey(self) -> bool:
        packet = self._lifeline.recv(4096)
        if not packet:
            return False
        process = read_kill(packet).process
        with suppress(ChildProcessError, ProcessLookupError):
            # Only a child that was not reaped yet: any other may be somebody else's by now.
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(process, signal.SIGKILL)
        return True

    def _reap(self) -> bool:
        """Bury the dead and tell of them. False when there is no zygote and will be none."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return True
            if dead is None:
                return True
            if dead.si_pid != self._zygote:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(dead.si_pid, signal.SIGKILL)  # what it started, and left behind
            os.waitpid(dead.si_pid, 0)
            status = dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status
            if dead.si_pid != self._zygote:
                self._lifeline.send(pack(Died(dead.si_pid, status)))
            elif not self._was_warm():
                if status != 0:  # else it has told the reason itself
                    self._lifeline.send(pack(Unfit(f"its zygote ended with status {status}")))
                return False
            else:
                self._start_zygote()

    def _was_warm(self) -> bool:
        try:
            return bool(os.read(self._warm, 1))
        except BlockingIOError:
            return False


def end_all() -> None:
    """Kill and reap every child, and theirs, until there is none."""
    me = os.getpid()
    while True:
        with suppress(OSError), open(f"/proc/{me}/task/{me}/children") as listed:
            for process in map(int, listed.read().split()):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process, signal.SIGKILL)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main(lifeline: int, spawning: int) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server says when
    os.setsid()
    become_subreaper()
    owner = socket.socket(fileno=lifeline)
    plan = read_plan(owner.recv(1 << 20))
    gc.collect()
    gc.freeze()
    try:
        ProcessSupervisor(owner, socket.socket(fileno=spawning), plan).serve()
    except BrokenPipeError:
        pass  # the server went while it was told something
    finally:
        end_all()
        sys.stdout.flush()
        os._exit(0)
