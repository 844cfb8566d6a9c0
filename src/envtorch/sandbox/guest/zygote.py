"""The zygote: one warm, single-threaded interpreter that forks every sandbox.

Never more than one thread: a threaded process may make no user namespace, and a fork of one may hold a lock
that nobody will ever release. And as little work as possible: what the zygote writes to between two forks is
memory that the sandboxes no longer share.
"""

import base64
import errno
import gc
import importlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from . import interpreter, kernel, root, wire
from .init import Init, Place, close_all_but, copy_home, mount_private
from .lockdown import ON, Limits, Lockdown, hidden_crowd, make_ruleset

_ALL_NAMESPACES = sum(kernel.NAMESPACES.values())
_LAYER_NAMES = {
    "user": "user namespace",
    "mnt": "mount namespace",
    "pid": "process namespace",
    "net": "network namespace",
    "ipc": "ipc namespace",
    "uts": "host name namespace",
}
_FAMILY = 2
"""More descriptors than this in a request, and the last two are the namespaces of a fork's parent."""


@dataclass(frozen=True, slots=True)
class Nursery:
    """What all sandboxes of one zygote have in common."""

    namespaces: bool
    why_no_namespaces: str
    program: bytes | None
    why_no_program: str
    readable: Sequence[str]
    environment: Mapping[str, str]
    ruleset: int | None
    """The Landlock rules of sandboxes with a private root, which name folders that they all share."""


def main(descriptor: int) -> None:
    """Read the settings, preload, then fork a sandbox for each packet until the owner goes away."""
    channel = socket.socket(fileno=descriptor)
    packet = wire.receive_packet(channel)
    if packet is None:
        return
    settings, _ = packet
    nursery = Nursery(
        namespaces=settings["namespaces"],
        why_no_namespaces=settings["why_no_namespaces"],
        program=base64.b64decode(settings["program"]) if settings["program"] else None,
        why_no_program=settings["why_no_program"],
        readable=settings["readable"],
        environment=settings["environment"],
        ruleset=make_ruleset(["/"], ["/home"]) if settings["namespaces"] else None,
    )
    try:
        for name in settings["preload"]:
            importlib.import_module(name)
        _refuse_threads()
    except BaseException as error:
        wire.send_packet(channel, {"event": "failed", "message": f"preload failed: {error!r}"})
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps for us,
    kernel.become_subreaper()  # and at once: who knows when the machine's own init would
    interpreter.rehearse()
    doors = [os.open("/proc/self/ns/mnt", os.O_RDONLY)] if nursery.namespaces else []
    wire.send_packet(channel, {"event": "warm"}, doors)
    for door in doors:
        os.close(door)
    gc.collect()
    gc.freeze()
    gc.disable()
    while (request := wire.receive_bytes(channel)) is not None:
        _deliver(nursery, *request)


def _refuse_threads() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"the preloaded modules started {threads - 1} threads; a zygote must have one")


def _deliver(nursery: Nursery, config: bytes, descriptors: list[int]) -> None:
    """Fork what one request asks for: a sandbox for one control socket and perhaps a home to copy, or walls
    for forks, for any number of control sockets and the namespaces of the family."""
    if len(descriptors) <= _FAMILY:
        _bear(nursery, config, *descriptors)
    elif os.fork() == 0:
        *controls, user_namespace, process_namespace = descriptors
        try:
            _join_family(user_namespace, process_namespace)
            for control in controls:
                _bear(nursery, config, control)
        except OSError as error:
            for control in controls:
                _confess(control, error)
        finally:
            os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)


def _bear(nursery: Nursery, config: bytes, control: int, home: int | None = None) -> None:
    """Fork one sandbox: the child is the first process in namespaces of its own, and never returns."""
    outside = os.getuid(), os.getgid()
    try:
        process = _fork_into_namespaces() if nursery.namespaces else os.fork()
    except OSError as error:
        _confess(control, error)
        return
    if process == 0:
        _live(nursery, config, control, home, outside)


def _fork_into_namespaces() -> int:
    try:
        return kernel.fork_into(_ALL_NAMESPACES)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # the answer of engines that cannot look into the arguments of clone3
            raise
    process = os.fork()
    if process == 0:
        kernel.unshare(_ALL_NAMESPACES)
        if os.fork():
            os._exit(0)
    return process


def _confess(control: int, error: BaseException) -> None:
    number = error.errno if isinstance(error, OSError) else None
    told = {"event": "failed", "message": str(error) or repr(error), "errno": number}
    wire.send_packet(socket.SocketType(fileno=os.dup(control)), told)


def _live(
    nursery: Nursery, config: bytes, control: int, home: int | None, outside: tuple[int, int]
) -> NoReturn:
    try:
        os.setsid()  # out of our process group: kill(0, ...) reaches a group across pid namespaces
        if nursery.namespaces:
            root.write_id_maps(root.AGENT_ID, root.AGENT_ID, *outside)
        channel = socket.SocketType(fileno=control)
        watch = os.pidfd_open(os.getpid())
        wire.send_packet(channel, {"event": "born"}, [watch])
        os.close(watch)
        _prepare(nursery, wire.decode(config.decode()), channel, home).serve()
    except BaseException as error:
        _confess(control, error)
    finally:
        os._exit(70)


def _join_family(user_namespace: int, process_namespace: int) -> None:
    """Move to where a fork's namespaces must be made: inside those of its parent.

    Only then may the forked process, which has no capability at all, move into them: a user namespace lets
    in whoever owns it from the one above, a pid namespace only processes of one of its ancestors.
    """
    os.setsid()
    kernel.setns(user_namespace, kernel.NEW_USER)
    kernel.setns(process_namespace, kernel.NEW_PID)
    if os.fork():
        os._exit(0)


def _prepare(
    nursery: Nursery, config: Mapping[str, Any], control: "socket.SocketType", home: int | None
) -> Init:
    """As the first process of the sandbox: build the walls, drop every privilege, report."""
    lockdown = Lockdown(Limits(**config["limits"]))
    adopts = bool(config["adopts"])
    kernel.set_dumpable(False)
    doors: list[int] = []
    if nursery.namespaces:
        if adopts:
            doors = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in kernel.NAMESPACES]
        kernel.set_hostname("sandbox")
        lockdown.layers |= dict.fromkeys(_LAYER_NAMES.values(), ON) | {"private root": ON}
        mount_private(lockdown, config["output_bytes"])
        place = Place(root.HOME, root.OUTPUT)
        lockdown.use_ruleset(nursery.ruleset)
    else:
        missing = f"unavailable: {nursery.why_no_namespaces}"
        lockdown.layers |= dict.fromkeys((*_LAYER_NAMES.values(), "private root", "workspace"), missing)
        lockdown.layers["process table"] = missing
        kernel.become_subreaper()
        room = hidden_crowd(config["crowd"])
        lockdown.limits = replace(lockdown.limits, processes=lockdown.limits.processes + room)
        place = Place(config["home"], f"{config['home']}/.output")
        lockdown.use_ruleset(make_ruleset(nursery.readable, [config["home"]]))
    place.furnish()
    if adopts:
        home = _await_adoption(control, doors)
    if home is not None:
        copy_home(home, place)
    kept = [control.fileno()]
    kept += [lockdown.ruleset] if lockdown.ruleset is not None else []
    close_all_but(kept)
    lockdown.lock_init(nursery.program, nursery.why_no_program)
    lockdown.layers |= {"rlimits": ON, "environment": ON, "descriptors": ON}
    wire.send_packet(control, {"event": "filled" if adopts else "ready", "layers": lockdown.layers})
    environment = {
        **nursery.environment,
        "HOME": place.home,
        "TMPDIR": place.home + "/tmp",  # noqa: S108  below its own home
        "PWD": place.workspace,
    }
    return Init(control, lockdown, place, environment, config["output_bytes"], nursery.namespaces)


def _await_adoption(control: "socket.SocketType", doors: Sequence[int]) -> int:
    """Give the doors of our walls away, and wait until there is something to adopt: answers with its home.

    The owner also gets our end of the control socket back, for the init that will foster the interpreter. It
    must not keep it from the start: then it would never hear of our end.
    """
    wire.send_packet(control, {"event": "ready"}, [*doors, control.fileno()])
    packet = wire.receive_packet(control)
    if packet is None:
        os._exit(0)
    return packet[1][0]
