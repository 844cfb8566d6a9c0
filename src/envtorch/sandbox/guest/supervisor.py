"""The supervisor: starts the zygote in its private root, and cleans up after an owner that was killed.

It runs outside every wall, as the owner's user, runs no agent code and never reads from a sandbox. It
ends when its lifeline, a socket to the owner, closes.
"""

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import guest_wire as wire
from . import kernel, root

NOBODY = 65534
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from guest.zygote import main; del sys.path[0]; "
    "main(int(sys.argv[2]))"
)


def main(lifeline_descriptor: int, channel_descriptor: int) -> None:
    """Start the zygote, tell the owner its process id, wait for the owner to end, clean up."""
    lifeline = socket.socket(fileno=lifeline_descriptor)
    packet = wire.receive_packet(lifeline)
    if packet is None:
        return
    settings, descriptors = packet
    doors = dict(zip(settings["doors"], descriptors, strict=True))
    refused = _namespaces_refused() if settings["namespaces"] else "switched off by the policy"
    if os.getuid() and not refused and "user" not in doors:
        doors["user"] = _new_user_namespace()
    zygote = _fork(lambda: _become_zygote(settings, refused, channel_descriptor, doors))
    os.close(channel_descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a zygote that is killed leaves no zombie
    kernel.become_subreaper()
    started = {"event": "started", "pid": zygote, "why_no_namespaces": refused}
    wire.send_packet(lifeline, started, [doors["user"]] if "user" in doors else [])
    folders: list[str] = []
    while (packet := wire.receive_packet(lifeline)) is not None:
        request, _ = packet
        if request["op"] == "leave":
            return  # the owner lives, and cleans up itself
        folders.append(request["folder"])
    _clean_up(folders, settings["groups"])


def _fork(body: Callable[[], None]) -> int:
    process = os.fork()
    if process:
        return process
    try:
        body()
    except BaseException as error:
        os.write(2, f"zygote: {error}\n".encode())
    finally:
        os._exit(70)


def _namespaces_refused() -> str:
    """Why sandboxes cannot have namespaces here; empty when they can. Found by trying it all once."""
    reader, writer = os.pipe()

    def attempt() -> None:
        try:
            doors = {"user": _new_user_namespace()} if os.getuid() else {}
            _enter_private_root([], os.path.dirname(os.path.abspath(__file__)), doors)
            user, group = os.getuid(), os.getgid()
            kernel.unshare(sum(kernel.NAMESPACES.values()))
            root.write_id_maps(root.AGENT_ID, root.AGENT_ID, user, group)
        except OSError as error:
            os.write(writer, str(error).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        os._exit(0)

    process = _fork(attempt)
    os.close(writer)
    with open(reader, "rb") as answer:
        reason = answer.read().decode(errors="replace")
    os.waitpid(process, 0)
    return reason


def _new_user_namespace() -> int:
    """A descriptor of a user namespace in which this ordinary user is itself, and may mount."""
    mapped, mapper = os.pipe()
    release, releaser = os.pipe()
    user, group = os.getuid(), os.getgid()

    def make() -> None:
        kernel.unshare(kernel.NEW_USER)
        root.write_id_maps(user, group, user, group)
        os.write(mapper, b"1")
        os.close(releaser)
        os.read(release, 1)

    process = _fork(make)
    os.close(mapper)
    try:
        if not os.read(mapped, 1):
            raise PermissionError(1, "an ordinary user may not make a user namespace here")
        return os.open(f"/proc/{process}/ns/user", os.O_RDONLY)
    finally:
        for descriptor in (mapped, release, releaser):
            os.close(descriptor)
        os.waitpid(process, 0)


def _enter_private_root(paths: Sequence[str], guest: str, doors: Mapping[str, int]) -> None:
    """Build the private root, or enter the one that a zygote before us has built.

    The same root and not one like it: the Landlock rules of living sandboxes name its very folders, and
    their forks are made by us.
    """
    if "user" in doors:
        kernel.setns(doors["user"], kernel.NEW_USER)
    if "mnt" in doors:
        kernel.setns(doors["mnt"], kernel.NEW_MOUNT)
    else:
        kernel.unshare(kernel.NEW_MOUNT)
        root.build(paths, guest)
    _become_nobody()


def _become_nobody() -> None:
    """A sandbox is never mapped to real root: it could read whatever root may read."""
    if os.getuid() == 0:
        with contextlib.suppress(PermissionError):
            os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.set_dumpable(True)  # or /proc/self stays root's, and no id map can be written through it


def _become_zygote(settings: Mapping[str, Any], refused: str, channel: int, doors: Mapping[str, int]) -> None:
    guest = os.path.dirname(os.path.abspath(__file__))
    paths = root.system_paths(settings["prefixes"], settings["readable"])
    where = os.path.dirname(guest)
    if refused:
        _become_nobody()
    else:
        _enter_private_root(paths, guest, doors)
        where = root.GUEST
    os.set_inheritable(channel, True)
    python = settings["python"]
    if not os.access(python, os.X_OK):
        raise PermissionError(
            f"user {os.getuid()} may not run {python}: without namespaces, sandboxes need an "
            "interpreter that every user can read"
        )
    # argv[0] is the full path: Python finds its prefix by it. The exec also leaves an environment that
    # holds nothing of the owner's, for /proc/PID/environ shows what the exec was given.
    os.execve(python, [python, "-I", "-B", "-c", _START, where, str(channel)], settings["environment"])  # noqa: S606


def _clean_up(folders: Sequence[str], groups: Sequence[str]) -> None:
    """Remove what an owner that was killed could not: its folders and its control groups."""
    for group in groups:
        end = time.monotonic() + 5.0
        while os.path.isdir(group) and time.monotonic() < end:
            for parent, children, _ in os.walk(group, topdown=False):
                for child in children:
                    with contextlib.suppress(OSError):
                        os.rmdir(os.path.join(parent, child))
            with contextlib.suppress(OSError):
                os.rmdir(group)
                break
            time.sleep(0.02)  # the kernel is still ending the sandboxes
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
