"""What a process of the sandbox gives up, in the order in which it can be given up."""

import contextlib
import os
import resource
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from os import close
from resource import setrlimit

from . import kernel
from .kernel import landlock_restrict

ON = "on"

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1, 2, 4, 8
_REFER, _TRUNCATE, _DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_MARGIN, _LEAST_ROOM = 16, 256
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one process of the sandbox, set as rlimits."""

    memory: int
    processes: int
    files: int
    disk: int


Rlimits = Sequence[tuple[int, tuple[int, int]]]
"""What `setrlimit` takes, ready made."""


def make_rlimits(limits: Limits, virtual_size: int) -> Rlimits:
    """`virtual_size` is mapped already: memory is counted from there, for libraries are not the agent's."""
    wanted = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, limits.files),
        (resource.RLIMIT_FSIZE, limits.disk),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_AS, virtual_size + limits.memory),
    )
    made = []
    for kind, value in wanted:
        _, most = resource.getrlimit(kind)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        made.append((kind, (value, value)))
    return made


def lock_child(rlimits: Rlimits, ruleset: int | None) -> None:
    """What a process that runs the agent's code gives up on top of that."""
    for kind, limit in rlimits:
        setrlimit(kind, limit)
    if ruleset is not None:
        landlock_restrict(ruleset)
        close(ruleset)


def landlock_layers(ruleset: int | None) -> dict[str, str]:
    if ruleset is None:
        return {"landlock": "unavailable: this kernel has no Landlock, or it is switched off"}
    version = kernel.landlock_version()
    enough = ON if version >= 6 else f"unavailable: Landlock ABI {version} cannot confine signals, 6 can"
    return {"landlock": ON, "landlock signals": enough}


def hidden_crowd(seen: int) -> int:
    """How many more processes than `seen` our user may have: the kernel counts those we cannot see, too.

    Without a user namespace the limit on processes is the user's, and the same user may live in other
    containers. Answers with 0, or with room that is enough now, found by forking under lower limits.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = hard if hard != resource.RLIM_INFINITY else 1 << 22
    room = 0
    try:
        while seen + _MARGIN + room < most and not _may_fork_under(seen + _MARGIN + room, hard):
            room = max(_LEAST_ROOM, 2 * room)
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    return room


def _may_fork_under(limit: int, hard: int) -> bool:
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
    try:
        process = os.fork()
    except BlockingIOError:
        return False
    if process == 0:
        os._exit(0)
    with contextlib.suppress(ChildProcessError):  # the kernel reaps for whoever ignores the end of children
        os.waitpid(process, 0)
    return True


def make_ruleset(readable: Sequence[str], writable: Sequence[str]) -> int | None:
    """Landlock rules for these paths, as a descriptor; None when the kernel has no Landlock."""
    version = kernel.landlock_version()
    if not version:
        return None
    every = (1 << 13) - 1
    every |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = every | (_DEVICE_CONTROL if version >= 5 else 0)
    attributes = struct.pack("Q", handled)
    if version >= 4:
        attributes += struct.pack("Q", 3)  # TCP bind and connect: no port is granted
    if version >= 6:
        attributes += struct.pack("Q", 3)  # abstract sockets and signals: none to outside
    ruleset = kernel.landlock_create(attributes)
    on_files = _EXECUTE | _WRITE_FILE | _READ_FILE | (_TRUNCATE if version >= 3 else 0)
    for paths, rights in ((readable, _READ), (writable, every), (_DEVICES, _READ_FILE | _WRITE_FILE)):
        for path in paths:
            _grant(ruleset, path, rights, on_files)
    return ruleset


def _grant(ruleset: int, path: str, rights: int, on_files: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not there, so there is nothing to grant
    try:
        # A rule on a file may carry only rights that mean something for a file.
        kernel.landlock_add(ruleset, rights if os.path.isdir(path) else rights & on_files, descriptor)
    finally:
        os.close(descriptor)


def virtual_size() -> int:
    """How much this process has mapped, in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except OSError:
        return 512 * 1024 * 1024  # /proc is out of sight: leave room for the interpreter
    return pages * resource.getpagesize()
