"""One live sandbox as its owner holds it: descriptors, limits, what is known of its end."""

import contextlib
import logging
import os
import secrets
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError, SessionLost, WrongProcess

from . import protocol
from .cgroups import Group
from .guest import tree
from .guest.lockdown import top_mark
from .guest.processes import children_of, descendants, mark, status
from .monitor import Excess, Monitor, memory_limit, process_limit
from .policy import Policy
from .report import Report, judge
from .spares import Shelf
from .usage import Usage, measure
from .zygotes import NOBODY, Zygote, estate

__all__ = ["INTERPRETER", "Core"]

logger = logging.getLogger(__name__)

INTERPRETER = "interpreter"
_ORPHANS_S = 8.0
_FORK_ROOM = 512
"""Without a control group, processes are counted per user namespace, and that of a fork lies inside its
parent's: once it has forks, a sandbox may have this many processes more."""


_live: "weakref.WeakSet[Core]" = weakref.WeakSet()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Core:
    """The owner's end of one sandbox."""

    policy: Policy
    zygote: Zygote
    control: socket.socket
    far_control: socket.socket
    data: socket.socket
    far_data: socket.socket
    home: str | None
    reader: protocol.FrameReader
    watch: int | None = None
    """A pidfd of the init: readable when the whole sandbox has ended."""
    group: Group | None = None
    layers: dict[str, str] = field(default_factory=dict)
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    untold: Mapping[str, Any] | None = None
    """What the init must know before anything else is asked of it."""
    doors: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """What forks of ours are made from: descriptors of our files and of two of our namespaces."""
    slots: "Shelf[Core]" = field(default_factory=Shelf)
    """Walls for the next fork."""
    exits: dict[str, protocol.Control] = field(default_factory=dict)
    """How each job that ended did so, as the init saw it."""
    telling: threading.Lock = field(default_factory=threading.Lock)
    """Held while something is sent to the init: the monitor may, too."""
    busy_since: float | None = None
    monitor: Monitor | None = None
    """Keeps our limits, where no control group does."""
    excess: Excess | None = None
    """The limit that the monitor last found exceeded in the present run."""
    interpreter: int | None = None
    """The process id of a forked interpreter, as this process sees it."""
    interrupted: bool = False
    signalled: bool = False
    """Code was told to stop by a signal that may still be on its way."""
    calling: bool = False
    """A function of the owner's runs for the code inside, which waits: it may be forked now."""
    lost: str = ""
    """Why the interpreter is gone; empty while it lives."""
    closed: bool = False
    moves: "list[Future[None]]" = field(default_factory=list)
    """Processes on their way into our control group."""
    refused: int = 0
    """How many forks the control group had refused when we last looked."""
    owner: int = field(default_factory=os.getpid)
    """The process that made it. A forked child of that process must not end it."""
    parent: "Core | None" = None
    """Whom this is a fork of. Its init must outlive ours, for our pid namespace lies inside its."""
    generation: int = 0
    """0 unless this is a fork; else one more than that of its parent."""
    offspring: int = 0
    """How many forks of ours still live."""

    @classmethod
    def new(cls, policy: Policy, zygote: Zygote) -> "Core":
        control, far_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data, far_data = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        control.setblocking(False)
        data.setblocking(False)
        home = None if zygote.has_namespaces else estate().new_folder()
        reader = protocol.FrameReader(policy.output_bytes)
        core = cls(policy, zygote, control, far_control, data, far_data, home, reader)
        _live.add(core)
        return core

    def config(self, *, adopts: bool) -> dict[str, Any]:
        """What the zygote must know to make this sandbox."""
        policy = self.policy
        crowd = 0 if self.zygote.has_namespaces else _processes_of_user(os.geteuid() or NOBODY)
        limits = {
            "memory": policy.memory_bytes,
            "processes": process_limit(policy) + crowd,
            "room_for_forks": _FORK_ROOM if self.zygote.has_namespaces else 0,
            "files": policy.open_files,
            "disk": policy.disk_bytes,
        }
        return {
            "limits": limits,
            "output_bytes": policy.output_bytes,
            "adopts": adopts,
            "home": self.home,
            "crowd": crowd,
        }

    def join_group(self, *, later: bool) -> None:
        """Put the sandbox under a control group of its own, where there are any.

        `later` is for forks: nothing of theirs runs yet, and their interpreter will be born under the limits
        of its parent's group, so it is never without.
        """
        groups = estate().groups
        policy = self.policy
        self.group = groups.create(
            memory_bytes=memory_limit(policy),
            processes=process_limit(policy),
        )
        process = self.host_process()
        if self.group is not None and process and later:
            self.moves.append(estate().mover.submit(self.group.add, process))
        elif self.group is not None and process:
            self.group.add(process)
        for controller in ("memory", "pids"):
            why = groups.unavailable.get(controller)
            self.layers[f"cgroup {controller}"] = f"unavailable: {why}" if why else "on"
        if groups.unavailable:
            self.monitor = estate().monitor
            self.monitor.add(self)

    def begin_work(self) -> None:
        """A request of the owner's is on its way."""
        self.busy_since = time.monotonic()
        if self.monitor is not None:
            self.monitor.notice()

    def end_work(self) -> None:
        self.busy_since = None

    def measure_usage(self) -> Usage | None:
        """What the processes of the sandbox use; None when it has ended."""
        init = self.host_process()
        if init is None or self.closed:
            return None
        in_family = self.parent is not None or bool(self.seeds)
        return measure(
            init,
            [self.interpreter] if self.interpreter is not None else [],
            own_mark=top_mark() - self.generation if in_family else None,
            enough_bytes=memory_limit(self.policy),
        )

    def end_excess(self, excess: Excess, usage: Usage) -> None:
        """End what uses too much: every process but the interpreter, or that one when it is alone."""
        self.excess = excess
        if usage.processes > 1:
            self.tell({"op": "cull"})
        else:
            self.signal(signal.SIGKILL)

    def count_in(self, watches: Sequence[int]) -> None:
        """Put further processes, given as descriptors that are ours to close, under our control group."""
        for watch in watches:
            process = _process_behind(watch)
            if self.group is not None and process:
                self.moves.append(estate().mover.submit(self.group.add, process))
            os.close(watch)

    def host_process(self) -> int | None:
        """The process id of the init as this process sees it."""
        return None if self.watch is None else _process_behind(self.watch)

    def adopt(self, process: int) -> None:
        """Take in a forked interpreter, which was born in its parent's group and as its init's child."""
        ids = _ids_by_namespace(process)
        if len(ids) >= 3 and self.parent is not None:
            self.generation = self.parent.generation + 1
            self.interpreter = process
            self.parent.tell({"op": "foster", "pid": ids[-2]}, [self.far_control.fileno()])
            # Its own init need not know before it is asked for something: until then it sleeps.
            self.untold = {"op": "adopt", "pid": ids[-1], "generation": self.generation}
        self.far_control.close()
        if self.group is not None:
            self.moves.append(estate().mover.submit(self.group.add, process))

    def close_doors(self) -> None:
        for door in self.doors:
            os.close(door)
        self.doors = []

    def settle(self) -> None:
        """Wait until nothing is on its way into our group any more, so that it can be removed."""
        for move in self.moves:
            move.exception()  # a process that has ended meanwhile cannot be moved, and need not be
        self.moves.clear()

    def ran_out_of_processes(self) -> bool:
        """Whether the control group has refused a fork since we last asked, or the monitor found too many."""
        if self.excess is not None and self.excess.resource == "processes":
            return True
        before, self.refused = self.refused, self.group.refused_processes() if self.group is not None else 0
        return self.refused > before

    def watched(self) -> list[int]:
        """Descriptors that tell of the end of the sandbox."""
        return [] if self.watch is None else [self.watch]

    def is_gone(self) -> bool:
        """Whether the init, and so everything in the sandbox, has ended."""
        if self.watch is None:
            return False
        poll = select.poll()  # and not select, which knows the first 1,024 descriptors only
        poll.register(self.watch, select.POLLIN)
        return bool(poll.poll(0))

    def report(self) -> Report:
        return judge(self.layers, namespaces=self.zygote.has_namespaces)

    def refuse_if_weak(self) -> None:
        """Raise unless everything the policy requires is protected here."""
        report = self.report()
        missing = {
            name: report.protections[name] for name in self.policy.require if not report.protects(name)
        }
        if missing:
            reasons = "; ".join(f"{name}: {why}" for name, why in sorted(missing.items()))
            raise ConfigurationError(f"this machine cannot protect what the policy requires: {reasons}")

    def tell(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request to the init. A dead init is found out by whoever waits for the answer."""
        with self.telling, contextlib.suppress(BrokenPipeError, ConnectionError, BlockingIOError):
            if self.untold is not None:
                first, self.untold = self.untold, None
                self.control.send(protocol.encode(first))
            socket.send_fds(self.control, [protocol.encode(request)], list(descriptors))

    def signal(self, number: int, job: str = INTERPRETER) -> None:
        self.tell({"op": "signal", "job": job, "number": number})

    def events(self) -> list[tuple[protocol.Control, list[int]]] | None:
        """What the init has said since; None when it has gone."""
        found: list[tuple[protocol.Control, list[int]]] = []
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.control, 65536, 16)
            except BlockingIOError:
                return found
            except OSError:
                return found or None
            if not data:
                return found or None
            said = protocol.decode_control(data)
            if said.event == "exited":
                self.exits[said.job] = said
            found.append((said, descriptors))

    def require_own_process(self) -> None:
        """Raise `WrongProcess` in a process that was forked off the one that made this sandbox."""
        if self.owner != os.getpid():
            raise WrongProcess.of("sandbox", self.owner)

    def require_interpreter(self) -> None:
        self.require_own_process()
        if self.closed:
            raise SessionLost("the sandbox is closed")
        if self.lost:
            raise SessionLost(f"the sandbox has lost its interpreter: {self.lost}")

    def require_open(self) -> None:
        self.require_own_process()
        if self.closed:
            raise SessionLost("the sandbox is closed")

    def kill(self) -> None:
        """End the whole sandbox at once."""
        if self.watch is not None:
            with contextlib.suppress(ProcessLookupError, OSError):
                signal.pidfd_send_signal(self.watch, signal.SIGKILL)

    def end_orphans(self) -> None:
        """End what an init that was killed has left behind, where there is no namespace to end with it.

        The zygote, or the keeper, has become the parent of such processes, and none of theirs has a mark.
        """
        end = time.monotonic() + _ORPHANS_S
        looks = 0
        while looks < 2 and time.monotonic() < end:  # twice nothing: they may move while we look
            looks += 1
            for parent in (self.zygote.process, self.zygote.keeper.pid):
                for orphan in children_of(parent):
                    if mark(orphan) == top_mark() and self._end_tree(orphan):
                        looks = 0
        if looks < 2:
            logger.error("processes of a sandbox whose init was killed could not be ended")

    @staticmethod
    def _end_tree(process: int) -> bool:
        """Kill a process and those below it. Whether any of them was alive."""
        found = False
        for victim in (process, *descendants(process)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(victim, signal.SIGKILL)
            state = status(victim)
            found = found or (state is not None and state.lives)
        return found

    def disown(self) -> None:
        """In a forked child of the owner: close its copies of the descriptors, and nothing else."""
        self.closed = True
        self._close_descriptors()

    def clear_home(self) -> None:
        """Remove the folder of a sandbox without a private root. Takes its time: agents make many files."""
        if self.home is not None:
            tree.remove(self.home)

    def release(self) -> None:
        """Give back everything else, once the processes are gone."""
        self.closed = True
        if self.monitor is not None:
            self.monitor.remove(self)
        self._close_descriptors()
        if self.group is not None:
            self.group.remove()

    def _close_descriptors(self) -> None:
        for channel in (self.control, self.far_control, self.data, self.far_data):
            channel.close()
        for descriptor in [*self.doors, *self.seeds, *self.watched()]:
            os.close(descriptor)
        self.doors, self.seeds, self.watch = [], [], None


def _disown_all() -> None:
    """In a forked child of the owner: what it held open would keep sandboxes alive after the owner's end."""
    for core in list(_live):
        core.disown()
    _live.clear()


os.register_at_fork(after_in_child=_disown_all)


def _process_behind(watch: int) -> int | None:
    """The id, as this process sees it, of the process that a pidfd is of; None when it has gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{watch}").read_text().splitlines():
            if line.startswith("Pid:") and int(line.split()[1]) > 0:
                return int(line.split()[1])
    return None


def _ids_by_namespace(process: int) -> list[int]:
    """The ids of a process, from our own pid namespace down to its own; empty when it has gone."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/status", "rb", buffering=0) as file:
        _, _, behind = file.readall().partition(b"\nNSpid:")
        return [int(word) for word in behind.partition(b"\n")[0].split()]
    return []


def new_identifier() -> str:
    """A name for a request that code running before it could not guess."""
    return secrets.token_hex(8)


def _processes_of_user(user: int) -> int:
    """How many processes the user has: without a user namespace they all count against its limit."""
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                count += entry.stat().st_uid == user
    return count
