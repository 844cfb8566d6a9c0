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
from collections.abc import Mapping
from typing import Any

from . import guest_wire as wire
from . import kernel
from .building import PRIVATE, SandboxPlan, ZygoteContext, report_failure
from .init import Init
from .interpreter import Interpreter
from .kernel import fork_into
from .lockdown import SIGNAL_SCOPE, make_ruleset, own_sizes

_ALL_NAMESPACES = sum(kernel.NAMESPACES.values())
_NEW_NAMESPACES = kernel.new_namespaces(_ALL_NAMESPACES)
_PARENT_NAMESPACES = 2
"""More descriptors than this in a request, and the last two are the namespaces of a fork's parent."""


def main(descriptor: int) -> None:
    """Read the settings, import what they ask for, and fork a sandbox for each request of the owner."""
    channel = socket.SocketType(fileno=descriptor)
    packet = wire.receive_packet(channel)
    if packet is None:
        return
    settings, _ = packet
    try:
        for name in settings["preload"]:
            importlib.import_module(name)
        _refuse_threads()
    except BaseException as error:
        wire.send_packet(channel, {"event": "failed", "message": f"preload failed: {error!r}"})
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps for us,
    kernel.become_subreaper()  # and at once: who knows when the machine's own init would
    init = Init(_make_context(settings))
    gc.disable()
    init.context.interpreter.rehearse()
    doors = [os.open("/proc/self/ns/mnt", os.O_RDONLY)] if init.context.namespaces else []
    wire.send_packet(channel, {"event": "warm"}, doors)
    for door in doors:
        os.close(door)
    gc.freeze()
    _serve(channel, init)


def _serve(channel: "socket.SocketType", init: Init) -> None:
    """Fork what each request asks for. Requests of one policy are alike, and their plans are kept."""
    while (received := wire.receive_bytes(channel)) is not None:
        request, descriptors = received
        _fulfil(init, init.context.plan(request), descriptors)


def _make_context(settings: Mapping[str, Any]) -> ZygoteContext:
    namespaces = settings["namespaces"]
    if namespaces:
        os.environ.update(PRIVATE.environment())
    version = kernel.landlock_version()
    if settings["landlock_abi"] is not None:
        version = min(version, settings["landlock_abi"])
    confined = namespaces or version >= SIGNAL_SCOPE
    agent = settings["agent_program" if confined else "agent_program_without_signals"]
    return ZygoteContext(
        namespaces=namespaces,
        why_no_namespaces=settings["why_no_namespaces"],
        seccomp=kernel.Seccomp(base64.b64decode(settings["program"])) if settings["program"] else None,
        why_no_seccomp=settings["why_no_program"],
        agent_seccomp=kernel.Seccomp(base64.b64decode(agent)) if agent else None,
        landlock_version=version,
        readable=settings["readable"],
        environment=settings["environment"],
        ruleset=make_ruleset(["/"], ["/home"], version) if namespaces else None,
        sizes=own_sizes(),
        interpreter=Interpreter(),
    )


def _refuse_threads() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"the preloaded modules started {threads - 1} threads; a zygote must have one")


def _fulfil(init: Init, plan: SandboxPlan, descriptors: list[int]) -> None:
    """Fork what one request asks for: a sandbox for one control socket and perhaps a home to copy, or walls
    for forks, for any number of control sockets and the namespaces of the family."""
    if len(descriptors) <= _PARENT_NAMESPACES:
        _fork_sandbox(init, plan, *descriptors)
    elif os.fork() == 0:
        *controls, user_namespace, process_namespace = descriptors
        try:
            _enter_parent_namespaces(user_namespace, process_namespace)
            init.outside = os.getuid(), os.getgid()
            for control in controls:
                _fork_sandbox(init, plan, control)
        except OSError as error:
            for control in controls:
                report_failure(control, error)
        finally:
            os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)


def _fork_sandbox(init: Init, plan: SandboxPlan, control: int, home: int | None = None) -> None:
    """Fork one sandbox: the child is the first process in namespaces of its own, and never returns."""
    try:
        process = fork_into(_NEW_NAMESPACES) if init.context.namespaces else os.fork()
    except OSError as error:
        if error.errno != errno.ENOSYS:  # the answer of engines that cannot look into the arguments of clone3
            report_failure(control, error)
            return
        process = _fork_and_unshare()
    if process == 0:
        init.live(plan, control, home)


def _fork_and_unshare() -> int:
    process = os.fork()
    if process == 0:
        kernel.unshare(_ALL_NAMESPACES)
        if os.fork():
            os._exit(0)
    return process


def _enter_parent_namespaces(user_namespace: int, process_namespace: int) -> None:
    """Move to where a fork's namespaces must be made: inside those of its parent.

    Only then may the forked process, which has no capability at all, move into them: a user namespace lets
    in whoever owns it from the one above, a pid namespace only processes of one of its ancestors.
    """
    os.setsid()
    kernel.setns(user_namespace, kernel.NEW_USER)
    kernel.setns(process_namespace, kernel.NEW_PID)
    if os.fork():
        os._exit(0)
