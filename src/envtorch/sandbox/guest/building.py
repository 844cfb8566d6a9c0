"""Building the walls of a sandbox: mounts, files, the report of its layers.

With namespaces a child of the init does it, and ends: what it has touched of the zygote's memory ends with
it, and the init, which stays for as long as the sandbox, has touched next to nothing.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import guest_wire as wire
from . import kernel, root, tree
from .interpreter import Interpreter
from .lockdown import (
    ON,
    SIGNAL_SCOPE,
    Limits,
    Rlimits,
    Sizes,
    hidden_crowd,
    landlock_layers,
    make_rlimits,
    make_ruleset,
    make_signal_scope,
)

_LAYER_NAMES = {
    "user": "user namespace",
    "mnt": "mount namespace",
    "pid": "process namespace",
    "net": "network namespace",
    "ipc": "ipc namespace",
    "uts": "host name namespace",
}


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

    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "TMPDIR": f"{self.home}/tmp", "PWD": self.workspace}  # noqa: S108


PRIVATE = Place(root.HOME, root.OUTPUT)
"""The same in every sandbox with a private root."""


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """What one policy asks of a sandbox."""

    limits: Limits
    rlimits: Rlimits
    output_bytes: int
    adopts: bool
    home: str | None
    crowd: int


@dataclass(frozen=True, slots=True)
class ZygoteContext:
    """What all sandboxes of one zygote have in common."""

    namespaces: bool
    why_no_namespaces: str
    seccomp: kernel.Seccomp | None
    why_no_seccomp: str
    agent_seccomp: kernel.Seccomp | None
    """One more filter for processes that run the agent's code."""
    landlock_version: int
    """The Landlock ABI to use, 0 for none."""
    readable: Sequence[str]
    environment: Mapping[str, str]
    ruleset: int | None
    """The Landlock rules of sandboxes with a private root, which name folders that they all share."""
    sizes: Sizes
    interpreter: Interpreter
    plans: dict[bytes, SandboxPlan] = field(default_factory=dict)
    """Requests that have been read before."""

    def plan(self, request: bytes) -> SandboxPlan:
        if (known := self.plans.get(request)) is not None:
            return known
        config = wire.decode(request.decode())
        limits = Limits(**config.pop("limits"))
        plan = SandboxPlan(limits, make_rlimits(limits, self.sizes), **config)
        if len(self.plans) > _MOST_PLANS or plan.home is not None:
            self.plans.clear()
        self.plans[request] = plan
        return plan


_MOST_PLANS = 64


def build_private(
    context: ZygoteContext,
    plan: SandboxPlan,
    control: "socket.SocketType",
    home: int | None,
    outside: tuple[int, int],
) -> bytes:
    """In new namespaces, as a child of their first process. Answers with the report of what will hold it.

    `outside` are our user and group, as they are outside of the namespaces.
    """
    kernel.set_dumpable(True)  # or /proc/self is not ours, and no id map can be written through it
    root.write_id_maps(root.AGENT_ID, root.AGENT_ID, *outside)
    kernel.set_dumpable(False)
    copies = plan.adopts or home is not None
    announce(control, os.getppid(), *([os.getpid()] if copies else []))
    names = kernel.NAMESPACES if plan.adopts else ()
    doors = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in names]
    kernel.set_hostname("sandbox")
    layers = dict.fromkeys(_LAYER_NAMES.values(), ON) | {"private root": ON, "workspace": ON}
    layers["process table"] = _mount_private(plan)
    PRIVATE.furnish()
    report = _report(context, plan, layers, context.ruleset)
    if plan.adopts:
        # Copying nothing from here to here: when there is something to copy, whoever asked for it waits.
        _copy_home(os.open(PRIVATE.home, os.O_RDONLY | os.O_DIRECTORY), PRIVATE)
        home = _await_files(control)
    if home is not None:
        _copy_home(home, PRIVATE)
    if plan.adopts:
        _await_adoption(control, doors)
    return report


@dataclass(frozen=True, slots=True)
class NoNamespaces:
    """What the init uses where namespaces are forbidden."""

    place: Place
    rlimits: Rlimits
    ruleset: int | None
    signal_scope: int | None
    """Landlock rules for the init itself, as a descriptor."""
    report: bytes


def build_in_the_open(
    context: ZygoteContext, plan: SandboxPlan, control: "socket.SocketType", home: int | None
) -> NoNamespaces:
    """Without namespaces: in a folder of the machine, as the init itself."""
    announce(control, os.getpid())
    kernel.set_dumpable(False)
    assert plan.home is not None
    missing = f"unavailable: {context.why_no_namespaces}"
    names = (*_LAYER_NAMES.values(), "private root", "workspace", "process table")
    kernel.become_subreaper()
    limits = replace(plan.limits, processes=plan.limits.processes + hidden_crowd(plan.crowd))
    place = Place(plan.home, f"{plan.home}/.output")
    ruleset = make_ruleset(context.readable, [place.home], context.landlock_version)
    signal_scope = make_signal_scope(context.landlock_version)
    place.furnish()
    if home is not None:
        _copy_home(home, place)
    report = _report(context, plan, dict.fromkeys(names, missing), ruleset)
    return NoNamespaces(place, make_rlimits(limits, context.sizes), ruleset, signal_scope, report)


def announce(control: "socket.SocketType", *processes: int) -> None:
    """Give the owner a descriptor of the init, by which it can watch and kill the sandbox; and one of the
    process that copies files, if there is one, for what it copies counts as the sandbox's."""
    watches = [os.pidfd_open(process) for process in processes]
    wire.send_packet(control, {"event": "born"}, watches)
    for watch in watches:
        os.close(watch)


def report_failure(control: int, error: BaseException) -> None:
    number = error.errno if isinstance(error, OSError) else None
    told = {"event": "failed", "message": str(error) or repr(error), "errno": number}
    wire.send_packet(socket.SocketType(fileno=os.dup(control)), told)


def _report(context: ZygoteContext, plan: SandboxPlan, layers: dict[str, str], ruleset: int | None) -> bytes:
    """What will be true once the init has locked itself in; until then nobody is told."""
    layers |= landlock_layers(ruleset, context.landlock_version)
    if not context.namespaces and context.landlock_version < SIGNAL_SCOPE:
        why = f"unavailable: {context.why_no_seccomp}"
        layers["signal rules"] = ON if context.agent_seccomp is not None else why
    layers |= dict.fromkeys(("no_new_privs", "capabilities", "rlimits", "environment", "descriptors"), ON)
    layers["seccomp"] = ON if context.seccomp is not None else f"unavailable: {context.why_no_seccomp}"
    return wire.encode({"event": "filled" if plan.adopts else "ready", "layers": layers}).encode()


def _mount_private(plan: SandboxPlan) -> str:
    """The sandbox's own tmpfs, and a view of the process table that holds only its own processes. Answers
    with what became of the latter."""
    disk = plan.limits.disk
    options = f"size={disk},nr_inodes={max(1024, disk // 4096)},mode=700"
    kernel.mount("tmpfs", root.HOME, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, options)
    room = f"size={2 * plan.output_bytes + 65536},nr_inodes=64,mode=700"
    kernel.mount("tmpfs", root.OUTPUT, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXEC, room)
    flags = kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_EXEC
    try:
        kernel.mount("proc", "/proc", "proc", flags)
    except OSError as error:
        # Better no /proc than the one of the machine, which this mount namespace still holds underneath.
        kernel.mount("tmpfs", "/proc", "tmpfs", flags | kernel.READ_ONLY, "size=0")
        return f"unavailable: {error.strerror}; /proc is empty"
    return ON


def _await_files(control: "socket.SocketType") -> int:
    """Wait until there are files to copy: answers with the folder that they are in."""
    wire.send_packet(control, {"event": "ready"})
    packet = wire.receive_packet(control)
    if packet is None:
        os._exit(0)
    return packet[1][0]


def _await_adoption(control: "socket.SocketType", doors: Sequence[int]) -> None:
    """Wait until there is an interpreter to adopt, and give the doors of our walls away.

    The owner also gets our end of the control socket, for the init that is to be the interpreter's parent.
    It must not keep it from the start: then it would never hear of our end. And it gets the doors no sooner,
    for it may have many forks made at once, and has room for so many descriptors only.
    """
    wire.send_packet(control, {"event": "copied"})
    if wire.receive_packet(control) is None:
        os._exit(0)
    wire.send_packet(control, {"event": "doors"}, [*doors, control.fileno()])
    for door in doors:
        os.close(door)


def _copy_home(source: int, place: Place) -> None:
    """Fill the new workspace from an older one."""
    try:
        tree.copy(source, place.home)
    finally:
        os.close(source)
