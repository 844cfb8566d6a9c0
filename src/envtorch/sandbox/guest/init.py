"""The first process of a sandbox: it builds the walls, starts the interpreter, reaps and kills.

It is ours and never runs the agent's code. It has a socket of its own to the owner, and when that
closes, for whatever reason, it ends, and the kernel ends everything in its pid namespace with it.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import interpreter, kernel, operations, root, tree, wire
from .lockdown import ON, Lockdown

INTERPRETER = "interpreter"
"""The name of the job that runs the agent's code."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sandbox keeps its files."""

    home: str
    output: str

    @property
    def workspace(self) -> str:
        return f"{self.home}/workspace"

    def furnish(self) -> None:
        for folder in (self.workspace, *(f"{self.home}/{name}" for name in ("tmp", "shm")), self.output):
            os.makedirs(folder, mode=0o700, exist_ok=True)


def mount_private(lockdown: Lockdown, output_bytes: int) -> None:
    """The sandbox's own tmpfs, and a view of the process table that holds only its own processes."""
    options = f"size={lockdown.limits.disk},nr_inodes={max(1024, lockdown.limits.disk // 4096)},mode=700"
    kernel.mount("tmpfs", root.HOME, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, options)
    room = f"size={2 * output_bytes + 65536},nr_inodes=64,mode=700"
    kernel.mount("tmpfs", root.OUTPUT, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXEC, room)
    lockdown.layers["workspace"] = ON
    flags = kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXEC
    try:
        kernel.mount("proc", "/proc", "proc", flags)
        lockdown.layers["process table"] = ON
    except OSError as error:
        # Better no /proc than the one of the machine, which this mount namespace still holds underneath.
        kernel.mount("tmpfs", "/proc", "tmpfs", flags | kernel.READ_ONLY, "size=0")
        lockdown.layers["process table"] = f"unavailable: {error.strerror}; /proc is empty"


@dataclass(slots=True)
class Init:
    """The live init of one sandbox."""

    control: "socket.SocketType"
    lockdown: Lockdown
    place: Place
    environment: dict[str, str]
    output_bytes: int
    namespaces: bool
    """Whether every process we can see is ours, and ends with us."""
    jobs: dict[int, str] = field(default_factory=dict)
    fosterlings: "dict[int, socket.SocketType]" = field(default_factory=dict)
    """Interpreters of forks, and whom to tell of their end."""
    bell: tuple[int, ...] = ()
    """The pipe by which a signal wakes the loop."""

    def serve(self) -> None:
        """Answer the owner until it goes away; then end, and everything with us."""
        wake, waker = self.bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self.control.fileno() in ready:
                packet = wire.receive_packet(self.control)
                if packet is None:
                    self._end()
                self._answer(*packet)

    def _answer(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        match request["op"]:
            case "start":
                self._start(lambda: self._interpret(descriptors[0]), INTERPRETER)
            case "adopt":
                self.jobs[request["pid"]] = INTERPRETER
            case "foster":
                # The kernel makes us, and not the new init, the parent of a process that forks out of our
                # namespace. So it is us who learn how it ends, and we tell its owner in its init's name.
                self.fosterlings[request["pid"]] = socket.SocketType(fileno=descriptors.pop())
            case "operate":
                self._start(lambda: self._operate(request["what"], descriptors), request["job"])
            case "signal":
                for process in self._processes_of(request["job"]):
                    # A command is the leader of its own process group, which must go with it.
                    target = process if request["job"] == INTERPRETER else -process
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(target, request["number"])
            case "sweep":
                self._sweep(spare=set(self._processes_of(INTERPRETER)))
                wire.send_packet(self.control, {"event": "swept"})
            case "freeze":
                self._freeze()
                wire.send_packet(self.control, {"event": "frozen"})
            case "thaw":
                for process in self._others():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process, signal.SIGCONT)
                wire.send_packet(self.control, {"event": "thawed"})
            case "retire":
                self._sweep(spare=set())
                shutil.rmtree(self.place.home, ignore_errors=True)
                wire.send_packet(self.control, {"event": "retired"})
            case "seed":
                self._give_seeds()
        for descriptor in descriptors:
            os.close(descriptor)

    def _give_seeds(self) -> None:
        """Descriptors of what forks are made from: our files and, with namespaces, two of those."""
        seeds = [os.open(self.place.home, os.O_RDONLY | os.O_DIRECTORY)]
        if self.namespaces:
            seeds += [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "pid")]
        wire.send_packet(self.control, {"event": "seed"}, seeds)
        for seed in seeds:
            os.close(seed)

    def _processes_of(self, job: str) -> list[int]:
        return [process for process, name in self.jobs.items() if name == job]

    def _start(self, body: Callable[[], int], job: str) -> None:
        try:
            process = os.fork()
        except OSError as error:  # the agent's processes have used up what there is
            message = f"no process could be started: {error.strerror}"
            wire.send_packet(self.control, {"event": "exited", "job": job, "status": 126, "message": message})
            return
        if process:
            self.jobs[process] = job
            return
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            if not self.namespaces:
                kernel.set_parent_death_signal(signal.SIGKILL)
            status = body()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)

    def _interpret(self, data: int) -> int:
        self.control.close()
        for descriptor in self.bell:
            os.close(descriptor)
        for channel in self.fosterlings.values():
            channel.close()
        self.lockdown.lock_child()
        kernel.set_dumpable(True)
        os.environ.update(self.environment)
        interpreter.main(
            socket.SocketType(fileno=data), self.place.workspace, self.place.output, self.output_bytes
        )
        return 0

    def _operate(self, what: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        self.lockdown.lock_child()
        os.closerange(3, 1024)
        os.chdir(self.place.workspace)
        if what["kind"] == "execute":
            kernel.set_dumpable(True)
            return operations.perform({**what, "environment": self.environment | what["environment"]})
        return operations.perform(what)

    def _reap(self) -> None:
        while True:
            try:
                process, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            job, channel = self.jobs.pop(process, None), self.control
            if process in self.fosterlings:
                job, channel = INTERPRETER, self.fosterlings.pop(process)
            if job is None:
                continue  # an orphan of the agent's
            event = {
                "event": "exited",
                "job": job,
                "status": os.waitstatus_to_exitcode(status),
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "memory_bytes": usage.ru_maxrss * 1024,
            }
            with contextlib.suppress(OSError):
                wire.send_packet(channel, event)
            if channel is not self.control:
                channel.close()

    def _sweep(self, spare: set[int]) -> None:
        """Kill every process but those of `spare`, until none is left to kill."""
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            victims = [process for process in self._others() if process not in spare]
            if not victims:
                return
            for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, a fork bomb cannot outrun us
                for process in victims:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process, number)
            self._reap()

    def _freeze(self) -> None:
        """Stop every process, until a look around finds no new one."""
        stopped: set[int] = set()
        while fresh := set(self._others()) - stopped:
            for process in fresh:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGSTOP)
            stopped |= fresh

    def _others(self) -> list[int]:
        if not self.namespaces:
            return _descendants(os.getpid())
        mine = os.getpid()
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != mine]
        return [process for process in found if _is_ours(process)]

    def _end(self) -> NoReturn:
        if not self.namespaces:
            self._sweep(spare=set())
        os._exit(0)


def _is_ours(process: int) -> bool:
    """Whether a process lives and is ours to kill: one of a fork has an id in a deeper namespace as well."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            status = file.read()
    except OSError:
        return False  # it has gone meanwhile
    lines = [line.split() for line in status.splitlines()]
    fields = {words[0]: words[1:] for words in lines if words}
    return fields.get(b"State:", [b"Z"])[0] not in (b"Z", b"X") and len(fields.get(b"NSpid:", ())) == 1


def _descendants(process: int) -> list[int]:
    """Every process below `process`; orphans among them too, for we are their reaper."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    parents.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [process]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def _ignore(*_: object) -> None:
    """SIGCHLD only has to wake the loop."""


def copy_home(source: int, place: Place) -> None:
    """Fill the new workspace from an older one. A tree too deep for us is an error, not a crash."""
    try:
        tree.copy(source, place.home)
    except RecursionError:
        raise OSError(40, "the workspace is nested too deeply to copy") from None
    finally:
        os.close(source)


def close_all_but(kept: Sequence[int]) -> None:
    """Close every inherited descriptor except the standard three and `kept`."""
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX") if sys.platform != "linux" else 1 << 16)
