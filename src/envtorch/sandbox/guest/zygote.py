"""The zygote: one warm, single-threaded interpreter that forks every sandbox.

Never more than one thread: `unshare(CLONE_NEWUSER)` refuses a threaded process, and a fork of one may
hold a lock that nobody will ever release.
"""

import base64
import gc
import importlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import interpreter, kernel, root, wire
from .init import Init, Place, close_all_but, copy_home, mount_private
from .lockdown import ON, Limits, Lockdown

_ALL_NAMESPACES = sum(kernel.NAMESPACES.values())
_LAYER_NAMES = {
    "user": "user namespace",
    "mnt": "mount namespace",
    "pid": "process namespace",
    "net": "network namespace",
    "ipc": "ipc namespace",
    "uts": "host name namespace",
}


@dataclass(frozen=True, slots=True)
class Nursery:
    """What all sandboxes of one zygote have in common."""

    namespaces: bool
    why_no_namespaces: str
    program: bytes | None
    why_no_program: str
    readable: Sequence[str]
    environment: Mapping[str, str]


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
    gc.collect()
    gc.freeze()
    gc.disable()
    doors = [os.open("/proc/self/ns/mnt", os.O_RDONLY)] if nursery.namespaces else []
    wire.send_packet(channel, {"event": "warm"}, doors)
    for door in doors:
        os.close(door)
    while (packet := wire.receive_packet(channel)) is not None:
        config, descriptors = packet
        if os.fork() == 0:
            _spawn(nursery, config, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _refuse_threads() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"the preloaded modules started {threads - 1} threads; a zygote must have one")


def _spawn(nursery: Nursery, config: Mapping[str, Any], descriptors: list[int]) -> None:
    """In a child of the zygote: make the namespaces and the init in them, then end."""
    control = socket.socket(fileno=descriptors[0])
    home = descriptors[1] if len(descriptors) > 1 else None
    try:
        os.setsid()  # out of our process group: kill(0, ...) reaches a group across pid namespaces
        if len(descriptors) > 2:
            _join_family(*descriptors[2:])
        if nursery.namespaces:
            _make_namespaces()
        process = os.fork()
        if process:
            watch = os.pidfd_open(process)
            wire.send_packet(control, {"event": "born"}, [watch])
            os._exit(0)
        init = _prepare(nursery, config, control, home)
        init.serve()
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else None
        wire.send_packet(control, {"event": "failed", "message": str(error) or repr(error), "errno": number})
    finally:
        os._exit(70)


def _join_family(user_namespace: int, process_namespace: int) -> None:
    """Move to where a fork's namespaces must be made: inside those of its parent.

    Only then may the forked process, which has no capability at all, move into them: a user namespace lets
    in whoever owns it from the one above, a pid namespace only processes of one of its ancestors.
    """
    kernel.setns(user_namespace, kernel.NEW_USER)
    kernel.setns(process_namespace, kernel.NEW_PID)
    if os.fork():
        os._exit(0)


def _make_namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    kernel.unshare(_ALL_NAMESPACES)
    root.write_id_maps(root.AGENT_ID, root.AGENT_ID, user, group)


def _prepare(nursery: Nursery, config: Mapping[str, Any], control: socket.socket, home: int | None) -> Init:
    """As the first process of the sandbox: build the walls, drop every privilege, report."""
    lockdown = Lockdown(Limits(**config["limits"]))
    adopts = bool(config["adopts"])
    os.setsid()
    kernel.set_dumpable(False)
    seeds = (
        [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "pid")]
        if nursery.namespaces
        else []
    )
    doors: list[int] = []
    if nursery.namespaces:
        doors = (
            [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in kernel.NAMESPACES] if adopts else []
        )
        kernel.set_hostname("sandbox")
        lockdown.layers |= dict.fromkeys(_LAYER_NAMES.values(), ON) | {"private root": ON}
        mount_private(lockdown, config["output_bytes"])
        place = Place(root.HOME, root.OUTPUT)
        lockdown.prepare_landlock(["/"], ["/home"])
    else:
        missing = f"unavailable: {nursery.why_no_namespaces}"
        lockdown.layers |= dict.fromkeys((*_LAYER_NAMES.values(), "private root", "workspace"), missing)
        lockdown.layers["process table"] = missing
        kernel.become_subreaper()
        place = Place(config["home"], f"{config['home']}/.output")
        lockdown.prepare_landlock(nursery.readable, [config["home"]])
    place.furnish()
    if home is not None:
        copy_home(home, place)
    kept = [control.fileno(), *seeds, *doors]
    kept += [lockdown.ruleset] if lockdown.ruleset is not None else []
    close_all_but(kept)
    lockdown.lock_init(nursery.program, nursery.why_no_program)
    lockdown.layers |= {"rlimits": ON, "environment": ON, "descriptors": ON}
    environment = {
        **nursery.environment,
        "HOME": place.home,
        "TMPDIR": place.home + "/tmp",  # noqa: S108  below its own home
        "PWD": place.workspace,
    }
    # A fork's owner also gets our end of the control socket back, for the init that will foster its
    # interpreter. It must not keep it from the start: then it would never hear of our end.
    given = [*doors, control.fileno()] if adopts else doors
    wire.send_packet(control, {"event": "ready", "layers": lockdown.layers}, given)
    for door in doors:
        os.close(door)
    os.environ.update(environment)
    shared = not nursery.namespaces
    return Init(control, lockdown, place, environment, config["output_bytes"], shared, seeds)
