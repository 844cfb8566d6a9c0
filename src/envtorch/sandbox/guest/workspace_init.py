"""The first process of a session on a writable root. It is ours and never runs an agent's program itself.

It starts shells, programs and file operations, each in a child that has given up every privilege; it reaps,
signals, and exchanges the root under living processes. When its control socket closes, for whatever reason,
it ends, and the kernel ends everything in its pid namespace with it.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from . import file_operations, furnishing, kernel, mounts, shell_process
from . import guest_wire as wire
from .confinement import Confinement
from .processes import status

_SWEEP_S = 8.0
_NOT_STARTED = 126
_FOREGROUND_FIELD = 5
"""Of /proc/PID/stat, behind the name: the process group that the terminal's keys go to."""


class WorkspaceInit:
    """Serves one owner over one control socket."""

    def __init__(self, control: "socket.SocketType", confinement: Confinement) -> None:
        self._control = control
        self._confinement = confinement
        self._jobs: dict[int, str] = {}
        self._waker: tuple[int, int] = (-1, -1)

    def serve(self) -> NoReturn:
        """Answer until the owner goes away."""
        wake, waker = self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        waiting = select.poll()
        waiting.register(wake, select.POLLIN)
        waiting.register(self._control, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                    self._reap()
                    continue
                packet = wire.receive_packet(self._control)
                if packet is None:
                    os._exit(0)
                self._answer(*packet)

    def _answer(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        try:
            reply, given = self._do(request, descriptors)
        except OSError as error:
            reply = {"event": "failed", "message": str(error), "errno": error.errno}
            given = []
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if reply is not None:
            wire.send_packet(self._control, {**reply, "id": request.get("id", 0)}, given)
        for descriptor in given:
            os.close(descriptor)

    def _do(
        self, request: Mapping[str, Any], descriptors: list[int]
    ) -> tuple[Mapping[str, Any] | None, Sequence[int]]:
        """What one request asks for: a reply, and descriptors that go with it."""
        done = {"event": "done"}
        match request["op"]:
            case "shell":
                return self._start_shell(request)
            case "operate":
                self._start_operation(request["job"], request["what"], descriptors)
                return None, ()
            case "signal":
                self._signal(request["job"], request["number"])
                return None, ()
            case "cull":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                return None, ()
            case "stop" | "continue":
                number = signal.SIGSTOP if request["op"] == "stop" else signal.SIGCONT
                for process in self._others():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, number)
            case "interrupt":
                self._signal_foreground(request["job"], request["number"])
                return None, ()
            case "processes":
                return {"event": "done", "processes": self._processes()}, ()
            case "sweep":
                self._sweep()
            case "freeze":
                mounts.freeze("/")
            case "thaw":
                mounts.thaw("/")
            case "reenter":
                furnishing.reenter(descriptors[0])
            case "listen":
                return done, [furnishing.listen_on_loopback(request["port"])]
            case "network":
                return done, [os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)]
            case "resize":
                size = struct.pack("HHHH", request["rows"], request["columns"], 0, 0)
                fcntl.ioctl(descriptors[0], termios.TIOCSWINSZ, size)
        return done, ()

    def _start_shell(self, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[int]]:
        plan = shell_process.ShellPlan(**request["plan"])
        process, ends = shell_process.start(plan, self._lock)
        self._jobs[process] = request["job"]
        return {"event": "done", "pid": process}, ends.all()

    def _start_operation(self, job: str, what: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        try:
            process = os.fork()
        except OSError as error:  # the agent's processes have used up what there is
            self._tell({"event": "exited", "job": job, "status": _NOT_STARTED, "errno": error.errno})
            return
        if process:
            self._jobs[process] = job
            return
        result = 70
        try:
            os.setsid()
            for place, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, place)
            os.closerange(3, 1 << 16)
            self._lock()
            result = file_operations.perform(what)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(result)

    def _lock(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        self._confinement.apply()

    def _signal(self, job: str, number: int) -> None:
        for process, name in self._jobs.items():
            if name == job:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, number)

    def _signal_foreground(self, job: str, number: int) -> None:
        """To what runs in the foreground of a shell's terminal, or to the shell when it is alone there."""
        for process, name in self._jobs.items():
            if name == job:
                with contextlib.suppress(OSError, ValueError):
                    os.killpg(_foreground_of(process), number)

    def _processes(self) -> list[dict[str, Any]]:
        """Ids and names of the first 64 of `_others`."""
        found = []
        for process in self._others()[:64]:
            with contextlib.suppress(OSError), open(f"/proc/{process}/comm", "rb") as file:
                found.append({"pid": process, "name": file.read(64).decode(errors="replace").strip()})
        return found

    def _others(self) -> list[int]:
        """The living processes of the session besides its shells."""
        found = []
        for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
            seen = status(process)
            if process != 1 and process not in self._jobs and seen is not None and seen.lives:
                found.append(process)
        return found

    def _sweep(self) -> None:
        """Kill every process but ourselves, and wait until none is left."""
        end = time.monotonic() + _SWEEP_S
        while time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # in our pid namespace: all of the session, none beyond it
            try:
                process, code = os.waitpid(-1, 0)
            except ChildProcessError:
                return
            self._tell_exit(process, code)
        raise TimeoutError(110, "processes of the session could not be ended")

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                process, code = os.waitpid(-1, os.WNOHANG)
                if not process:
                    return
                self._tell_exit(process, code)

    def _tell_exit(self, process: int, code: int) -> None:
        job = self._jobs.pop(process, None)
        if job is not None:
            self._tell({"event": "exited", "job": job, "status": os.waitstatus_to_exitcode(code)})

    def _tell(self, event: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            wire.send_packet(self._control, event)


def _foreground_of(process: int) -> int:
    with open(f"/proc/{process}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    group = int(fields[_FOREGROUND_FIELD])
    return group if group > 0 else process


def live(
    control: "socket.SocketType",
    tree: int,
    settings: Mapping[str, Any],
    filters: Sequence[kernel.Seccomp],
    network: int | None,
) -> NoReturn:
    """As the first process in new namespaces: enter the root, tell the owner, serve it. `network` is the
    network namespace of another session, to be shared with it."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a first process without a handler is not interrupted
        kernel.set_dumpable(False)
        if network is not None:
            kernel.setns(network, kernel.NEW_NET)
        _close_all_but(control.fileno(), tree)
        furnishing.enter(
            tree,
            hostname=settings["hostname"],
            names_host=settings["names_host"],
            shared_memory_bytes=settings["shared_memory_bytes"],
        )
        os.close(tree)
        if settings["own_network"]:
            furnishing.bring_loopback_up()
        wire.send_packet(control, {"event": "ready"})
        rlimits = {int(kind): limit for kind, limit in settings["rlimits"].items()}
        WorkspaceInit(control, Confinement(filters, rlimits)).serve()
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else None
        with contextlib.suppress(OSError):
            wire.send_packet(
                control, {"event": "failed", "message": str(error) or repr(error), "errno": number}
            )
    finally:
        os._exit(70)


def _close_all_but(*kept: int) -> None:
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, 1 << 16)
