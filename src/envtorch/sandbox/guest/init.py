"""The first process of a sandbox: it has the walls built, starts the interpreter, reaps and kills.

It is ours and never runs the agent's code. It has a socket of its own to the owner, and when that
closes, for whatever reason, it ends, and the kernel ends everything in its pid namespace with it.

It must touch little of the zygote's memory, for each page that it does is copied for every sandbox. So what
it does before it waits uses names, not attributes of modules: looking up one of those for the first time
writes to the type cache and to the names in it.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import time
import traceback
from _signal import set_wakeup_fd  # type: ignore[import-not-found]
from _signal import signal as set_handler  # without the enums around it
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import close, closerange, fork, pipe, pipe2, read, setsid, waitpid, write
from select import poll
from socket import SocketType as Channel
from typing import Any, NoReturn

from . import file_operations, kernel, tree
from . import guest_wire as wire
from .building import PRIVATE, SandboxPlan, ZygoteContext, build_in_the_open, build_private, report_failure
from .guest_wire import decode, receive_bytes
from .kernel import lock_down, set_dumpable
from .lockdown import RLIMIT_MSGQUEUE, lock_child, make_room, mark_rlimits
from .processes import descendants, mark, stands_still, status, waits

INTERPRETER = "interpreter"
"""The name of the job that runs the agent's code."""
_SIGCHLD, _DEFAULT = int(signal.SIGCHLD), int(signal.SIG_DFL)
_WAKEUP = os.O_NONBLOCK | os.O_CLOEXEC
_POLLIN = select.POLLIN
_MOST_DESCRIPTORS = 1 << 16
_ENDED = b'{"event":"ended"}'
_SWEEP_S = 8.0
"""Less than the owner waits for the answer."""
_STOP_S = 0.0001
"""How soon to look again for processes that have been told to stop."""
_START = b'{"op":"start"}'
_NOTHING_YET: Any = None


class Init:
    """The init of one sandbox. It is made in the zygote, and comes to life in a fork of it."""

    def __init__(self, context: ZygoteContext) -> None:
        self.context = context
        self.control: socket.SocketType = _NOTHING_YET
        self.plan: SandboxPlan = _NOTHING_YET
        self.place = PRIVATE
        self.ruleset = context.ruleset
        self.seccomp = context.seccomp.header if context.seccomp is not None else None
        self.agent_seccomp = context.agent_seccomp.header if context.agent_seccomp is not None else None
        self.signals_are_scoped = False
        """Whether a signal to every process reaches our own descendants only."""
        self.interpreter = context.interpreter
        self.namespaces = context.namespaces
        self.outside = os.getuid(), os.getgid()
        """Our user and group, as they are outside of the sandbox."""
        self.jobs: dict[int, str] = {}
        self.forked_interpreters: dict[int, socket.SocketType] = {}
        """Interpreters of forks, and whom to tell of their end."""
        self.has_forks = False
        """Whether forks have been made of this sandbox."""
        self.stopped: dict[int, None] = {}
        """Processes that have been stopped until the next thaw, in that order."""
        self.wakeup: tuple[int, ...] = ()
        """The pipe by which a signal wakes the loop."""

    def live(self, plan: SandboxPlan, control: int, home: int | None) -> NoReturn:
        """As the first process of the sandbox: have the walls built, drop every privilege, serve."""
        try:
            setsid()  # out of the zygote's process group: kill(0, ...) reaches one across pid namespaces
            set_handler(_SIGCHLD, _DEFAULT)
            self.control = channel = Channel(-1, -1, -1, control)
            self.plan = plan
            if self.namespaces:
                self._lock_in_while_another_builds(plan, control, home)
            else:
                walls = build_in_the_open(self.context, plan, channel, home)
                self.place, self.ruleset = walls.place, walls.ruleset
                self.plan = replace(plan, rlimits=walls.rlimits)
                scope = walls.signal_scope
                kept = [control if rules is None else rules for rules in (self.ruleset, scope)]
                close_all_but(control, *kept)
                lock_down(self.seccomp)
                if scope is not None:
                    kernel.landlock_restrict(scope)
                    close(scope)
                    self.signals_are_scoped = True
                channel.send(walls.report)
            self.serve(control)
        except BaseException as error:
            report_failure(control, error)
        finally:
            os._exit(70)

    def _lock_in_while_another_builds(self, plan: SandboxPlan, control: int, home: int | None) -> None:
        """A child of ours builds, reports, and ends. It does not report before it has our word that we have
        locked ourselves in; and nobody but it listens to the owner meanwhile."""
        set_dumpable(False)
        word, given = pipe()
        builder = fork()
        if builder == 0:
            close(given)
            self._build(plan, home, word)
        ruleset = self.ruleset
        close_all_but(control, control if ruleset is None else ruleset, given)
        lock_down(self.seccomp)
        write(given, b"1")
        close(given)
        if waitpid(builder, 0)[1]:
            os._exit(0)  # it has said why

    def _build(self, plan: SandboxPlan, home: int | None, word: int) -> NoReturn:
        try:
            report = build_private(self.context, plan, self.control, home, self.outside)
            if read(word, 1):
                self.control.send(report)
                os._exit(0)
        except BaseException as error:
            report_failure(self.control.fileno(), error)
        finally:
            os._exit(70)

    def serve(self, control: int) -> None:
        """Answer the owner until it goes away; then end, and everything with us."""
        wake, waker = self.wakeup = pipe2(_WAKEUP)
        set_handler(_SIGCHLD, _ignore)
        set_wakeup_fd(waker, warn_on_full_buffer=False)
        waiting = poll()
        waiting.register(wake, _POLLIN)
        waiting.register(control, _POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                    self._reap()
                    continue
                packet = receive_bytes(self.control)
                if packet is None:
                    self._end()
                data, descriptors = packet
                if data == _START:
                    self._start(self._interpret, INTERPRETER, descriptors)
                else:
                    self._answer(decode(data.decode()), descriptors)
                for descriptor in descriptors:
                    close(descriptor)

    def _answer(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        match request["op"]:
            case "adopt":
                self.jobs[request["pid"]] = INTERPRETER
                self.plan = replace(self.plan, rlimits=mark_rlimits(self.plan.rlimits, request["generation"]))
            case "watch_fork":
                # The kernel makes us, and not the new init, the parent of a process that forks out of our
                # namespace. So it is us who learn how it ends, and we tell its owner in its init's name.
                self.forked_interpreters[request["pid"]] = socket.SocketType(fileno=descriptors.pop())
                self._mark(request["pid"])
                wire.send_packet(self.control, {"event": "watched"})
            case "operate":
                self._start(lambda given: self._operate(request["what"], given), request["job"], descriptors)
            case "signal":
                for process in self._processes_of(request["job"]):
                    # A command is the leader of its own process group, which must go with it.
                    target = process if request["job"] == INTERPRETER else -process
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(target, request["number"])
            case "ping":
                wire.send_packet(self.control, {"event": "pong"})
            case "sweep":
                self._sweep(spare=self._processes_of(INTERPRETER))
                wire.send_packet(self.control, {"event": "swept"})
            case "cull":
                self._sweep(spare=self._processes_of(INTERPRETER))
            case "freeze":
                if self._freeze(spare=[]):
                    wire.send_packet(self.control, {"event": "frozen"})
            case "hold":
                if self._freeze(spare=self._processes_of(INTERPRETER)):
                    wire.send_packet(self.control, {"event": "held"})
            case "thaw":
                self._thaw()
            case "retire":
                self._sweep(spare=[])
                tree.remove(self.place.home)
                wire.send_packet(self.control, {"event": "retired"})
            case "seed":
                self._give_seeds()

    def _mark(self, process: int) -> None:
        """Give the interpreter of a fork the mark and the limit on processes of its own sandbox."""
        wanted = dict(mark_rlimits(self.plan.rlimits, 1))
        for kind in (RLIMIT_MSGQUEUE, resource.RLIMIT_NPROC):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                resource.prlimit(process, kind, wanted[kind])

    def _give_seeds(self) -> None:
        """Descriptors of what forks are made from: our files and, with namespaces, two of those."""
        self._make_room_for_forks()
        seeds = [os.open(self.place.home, os.O_RDONLY | os.O_DIRECTORY)]
        if self.context.namespaces:
            seeds += [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "pid")]
        wire.send_packet(self.control, {"event": "seed"}, seeds)
        for seed in seeds:
            os.close(seed)

    def _make_room_for_forks(self) -> None:
        """Raise the limit on processes: those of forks count as ours. Each fork has a limit of its own."""
        (_, most) = dict(self.plan.rlimits)[resource.RLIMIT_NPROC]
        self.has_forks = True
        for process in self._processes_of(INTERPRETER):
            with contextlib.suppress(OSError):
                resource.prlimit(process, resource.RLIMIT_NPROC, (most, most))

    def _processes_of(self, job: str) -> list[int]:
        return [process for process, name in self.jobs.items() if name == job]

    def _start(self, body: Callable[[list[int]], int], job: str, descriptors: list[int]) -> None:
        try:
            process = fork()
        except OSError as error:  # the agent's processes have used up what there is
            message = f"no process could be started: {error.strerror}"
            wire.send_packet(self.control, {"event": "exited", "job": job, "status": 126, "message": message})
            return
        if process:
            self.jobs[process] = job
            return
        status = 70
        try:
            set_wakeup_fd(-1)
            set_handler(_SIGCHLD, _DEFAULT)
            setsid()
            if not self.namespaces:
                kernel.set_parent_death_signal(signal.SIGKILL)
            status = body(descriptors)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)

    def _interpret(self, descriptors: list[int]) -> int:
        self.control.close()
        for descriptor in self.wakeup:
            close(descriptor)
        if self.forked_interpreters:
            for channel in self.forked_interpreters.values():
                channel.close()
        plan = self.plan
        lock_child(plan.rlimits, self.ruleset, self.agent_seccomp)
        set_dumpable(True)
        place = self.place
        if place is not PRIVATE:
            os.environ.update(place.environment())
        channel = Channel(-1, -1, -1, descriptors[0])
        self.interpreter.live(channel, place.workspace, place.output, plan.output_bytes)
        return 0

    def _operate(self, what: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        rlimits = self.plan.rlimits
        if self.has_forks:
            rlimits = make_room(rlimits)
        lock_child(rlimits, self.ruleset, self.agent_seccomp)
        os.closerange(3, 1024)
        os.chdir(self.place.workspace)
        if what["kind"] == "execute":
            kernel.set_dumpable(True)
            environment = {
                **self.context.environment,
                **self.place.environment(),
                **what["environment"],
            }
            return file_operations.perform({**what, "environment": environment})
        return file_operations.perform(what)

    def _reap(self) -> None:
        while True:
            try:
                process, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            job, channel = self.jobs.pop(process, None), self.control
            if process in self.forked_interpreters:
                job, channel = INTERPRETER, self.forked_interpreters.pop(process)
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

    def _sweep(self, spare: Sequence[int]) -> None:
        """Kill every process but those of `spare`, which stand still meanwhile, until none is left."""
        for process in spare:
            _signal(process, signal.SIGSTOP)
        end = time.monotonic() + _SWEEP_S
        looks = 0
        # Twice nothing: while we look, an orphan may move to a place where we have looked already.
        while looks < 2 and time.monotonic() < end:
            looks += 1
            for process in self._others():
                if process not in spare:
                    _signal(process, signal.SIGKILL)
                    found = status(process)
                    if found is not None and found.lives:
                        looks = 0
            self._reap()
        for process in spare:
            _signal(process, signal.SIGCONT)

    def _freeze(self, spare: Sequence[int]) -> bool:
        """Stop every process, but those of `spare` only if they may do something on their own.

        Whether they all stand still now: a signal takes effect some time after it was sent, and an agent may
        have processes that start others faster than they can be stopped.
        """
        end = time.monotonic() + _SWEEP_S
        looks = 0
        while looks < 2 and time.monotonic() < end:  # twice nothing, as in a sweep
            looks += 1
            for process in self._processes_of_the_agent():
                if process in spare and waits(process):
                    continue
                if not stands_still(process) and _signal(process, signal.SIGSTOP):
                    self.stopped[process] = None
                    looks = 0
            if not looks:
                time.sleep(_STOP_S)
        return looks == 2

    def _thaw(self) -> None:
        """Let those go on that we have stopped, and no others: the agent may stop processes itself.

        The youngest first, so that a shell that waits for one finds it running.
        """
        for process in reversed(self.stopped):
            _signal(process, signal.SIGCONT)
        self.stopped.clear()

    def _others(self) -> Iterator[int]:
        """The processes of this sandbox besides ourselves, each told as soon as it is found."""
        if not self.namespaces:
            yield from descendants(os.getpid())
            return
        mine = os.getpid()
        for name in filter(str.isdigit, os.listdir("/proc")):
            process = int(name)
            if process != mine and self._is_ours(process):
                yield process

    def _processes_of_the_agent(self) -> Iterator[int]:
        """The same by their mark alone, which is quick to read: not those that build the walls of forks."""
        if not self.namespaces:
            yield from descendants(os.getpid())
            return
        own_mark = dict(self.plan.rlimits)[RLIMIT_MSGQUEUE][0]
        for name in filter(str.isdigit, os.listdir("/proc")):
            process = int(name)
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if resource.prlimit(process, RLIMIT_MSGQUEUE)[0] == own_mark:
                    yield process

    def _is_ours(self, process: int) -> bool:
        """False for the processes of forks, which are in a deeper namespace and have another mark."""
        found = status(process)
        if found is None or not found.lives:
            return False
        if found.namespaces == 1:
            return True
        return mark(process) == dict(self.plan.rlimits)[RLIMIT_MSGQUEUE][0]

    def _end(self) -> NoReturn:
        """End. With namespaces the kernel ends all our processes; without them we do, and wait for it."""
        if not self.namespaces:
            if self.signals_are_scoped:
                os.kill(-1, signal.SIGKILL)  # all of them at once, so that none has time to fork
                with contextlib.suppress(ChildProcessError):
                    while True:
                        os.wait()
            else:
                self._sweep(spare=[])
            with contextlib.suppress(OSError):
                self.control.send(_ENDED, socket.MSG_DONTWAIT)
        os._exit(0)


def _signal(process: int, number: int) -> bool:
    """Whether there is such a process, and it is one that we may send signals to."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)
        return True
    return False


def _ignore(*_: object) -> None:
    """SIGCHLD only has to wake the loop."""


def close_all_but(one: int, another: int, third: int) -> None:
    """Close every inherited descriptor except the standard three and these, some of which may be the same."""
    low, high = min(one, another, third), max(one, another, third)
    middle = one + another + third - low - high
    closerange(3, low)
    closerange(low + 1, middle)
    closerange(middle + 1, high)
    closerange(high + 1, _MOST_DESCRIPTORS)
