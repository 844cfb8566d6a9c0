"""One live sandbox as its owner holds it: descriptors, limits, what is known of its end."""

import contextlib
import logging
import os
import secrets
import signal
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from envtorch.errors import ConfigurationError, SessionLost, WrongProcess

from .cgroups import Group
from .guest import tree
from .guest.lockdown import top_mark
from .guest.processes import children_of, descendants, mark, status
from .handle import Handle, process_behind
from .lineage import Lineage
from .monitor import Excess, Monitor, memory_limit, process_limit
from .policy import Policy
from .protections import Report, judge
from .sandbox_phases import MOVES, SandboxPhase
from .usage import Usage, measure
from .zygotes import NOBODY, Zygote, owned_resources

__all__ = ["Core"]

logger = logging.getLogger(__name__)

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
    home: str | None
    """The folder of a sandbox without a private root."""
    handle: Handle
    lineage: "Lineage[Core]" = field(default_factory=Lineage)
    phase: SandboxPhase = SandboxPhase.READY
    why_lost: str = ""
    """Why the interpreter is gone; empty while it lives."""
    owner: int = field(default_factory=os.getpid)
    """The process that made it. No other one may use or end it."""
    interpreter: int | None = None
    """The process id of a forked interpreter, as this process sees it."""
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    group: Group | None = None
    moves: "list[Future[None]]" = field(default_factory=list)
    """Processes on their way into our control group."""
    refused: int = 0
    """How many forks the control group had refused when we last looked."""
    monitor: Monitor | None = None
    """Keeps our limits, where no control group does."""
    excess: Excess | None = None
    """The limit that the monitor last found exceeded in the present run."""
    busy_since: float | None = None
    interrupted: bool = False
    """The owner has asked for the present run to be stopped."""

    @classmethod
    def new(cls, policy: Policy, zygote: Zygote) -> "Core":
        home = None if zygote.has_namespaces else owned_resources().new_folder()
        core = cls(policy, zygote, home, Handle.new(policy.output_bytes))
        _live.add(core)
        return core

    @property
    def closed(self) -> bool:
        return self.phase is SandboxPhase.CLOSED

    @property
    def lost(self) -> bool:
        return self.phase is SandboxPhase.LOST

    def move(self, phase: SandboxPhase) -> None:
        """Go on to another phase; `MOVES` says which may follow."""
        if phase is not self.phase:
            assert phase in MOVES[self.phase], f"{self.phase} cannot become {phase}"
            self.phase = phase

    def lose(self, why: str) -> None:
        """The interpreter is gone."""
        self.why_lost = why
        if not self.closed:
            self.move(SandboxPhase.LOST)

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
        groups = owned_resources().groups
        policy = self.policy
        self.group = groups.create(
            memory_bytes=memory_limit(policy),
            processes=process_limit(policy),
        )
        process = self.handle.host_process()
        if self.group is not None and process and later:
            self.moves.append(owned_resources().mover.submit(self.group.add, process))
        elif self.group is not None and process:
            self.group.add(process)
        for controller in ("memory", "pids"):
            why = groups.unavailable.get(controller)
            self.layers[f"cgroup {controller}"] = f"unavailable: {why}" if why else "on"
        if groups.unavailable:
            self.monitor = owned_resources().monitor
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
        init = self.handle.host_process()
        if init is None or self.closed:
            return None
        in_family = self.lineage.parent is not None or bool(self.lineage.seeds)
        return measure(
            init,
            [self.interpreter] if self.interpreter is not None else [],
            own_mark=top_mark() - self.lineage.generation if in_family else None,
            enough_bytes=memory_limit(self.policy),
        )

    def end_excess(self, excess: Excess, usage: Usage) -> None:
        """End what uses too much: every process but the interpreter, or that one when it is alone."""
        self.excess = excess
        if usage.processes > 1:
            self.handle.tell({"op": "cull"})
        else:
            self.handle.signal(signal.SIGKILL)

    def count_in(self, watches: Sequence[int]) -> None:
        """Put further processes, given as descriptors that are ours to close, under our control group."""
        for watch in watches:
            process = process_behind(watch)
            if self.group is not None and process:
                self.moves.append(owned_resources().mover.submit(self.group.add, process))
            os.close(watch)

    def adopt(self, process: int) -> bool:
        """Take in a forked interpreter, which was born in its parent's group and as its init's child.

        Answers whether the parent's init was asked to tell it apart from its own processes, which it says
        `watched` to.
        """
        ids = _ids_by_namespace(process)
        parent, handle = self.lineage.parent, self.handle
        is_watched = False
        if len(ids) >= 3 and parent is not None:
            is_watched = True
            self.lineage.generation = parent.lineage.generation + 1
            self.interpreter = process
            parent.handle.tell({"op": "watch_fork", "pid": ids[-2]}, [handle.far_control.fileno()])
            handle.tell({"op": "adopt", "pid": ids[-1], "generation": self.lineage.generation})
            self.move(SandboxPhase.SETTLING)
        handle.far_control.close()
        if self.group is not None:
            self.moves.append(owned_resources().mover.submit(self.group.add, process))
        return is_watched

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

    def require_own_process(self) -> None:
        """Raise `WrongProcess` in a process that was forked off the one that made this sandbox."""
        if self.owner != os.getpid():
            raise WrongProcess.of("sandbox", self.owner)

    def require_interpreter(self) -> None:
        self.require_own_process()
        if self.closed:
            raise SessionLost("the sandbox is closed")
        if self.lost:
            raise SessionLost(f"the sandbox has lost its interpreter: {self.why_lost}")

    def require_open(self) -> None:
        self.require_own_process()
        if self.closed:
            raise SessionLost("the sandbox is closed")

    def end_orphans(self) -> None:
        """End what an init that was killed has left behind, where there is no namespace to end with it.

        The zygote, or the supervisor, has become the parent of such processes, and none of theirs has a mark.
        """
        end = time.monotonic() + _ORPHANS_S
        looks = 0
        while looks < 2 and time.monotonic() < end:  # twice nothing: they may move while we look
            looks += 1
            for parent in (self.zygote.process, self.zygote.supervisor.pid):
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
        self.phase = SandboxPhase.CLOSED
        self.handle.close()
        self.lineage.close()

    def clear_home(self) -> None:
        """Remove the folder of a sandbox without a private root. Takes its time: agents make many files."""
        if self.home is not None:
            tree.remove(self.home)

    def release(self) -> None:
        """Give back everything else, once the processes are gone."""
        self.phase = SandboxPhase.CLOSED
        if self.monitor is not None:
            self.monitor.remove(self)
        self.handle.close()
        self.lineage.close()
        if self.group is not None:
            self.group.remove()


def _disown_all() -> None:
    """In a forked child of the owner: what it held open would keep sandboxes alive after the owner's end."""
    for core in list(_live):
        core.disown()
    _live.clear()


os.register_at_fork(after_in_child=_disown_all)


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
