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
from .kernel import install_filter, landlock_restrict

ON = "on"

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1, 2, 4, 8
_REFER, _TRUNCATE, _DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_MARGIN, _LEAST_ROOM = 16, 256
SIGNAL_SCOPE = 6
"""The first Landlock ABI that can confine signals."""
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


_RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE = 11, 12  # Python has no names for these
_SIGNALS_AND_TIMERS = 256
_SPARE_ADDRESSES = 8 << 30
_TOP_MARK = 800_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one process of the sandbox, set as rlimits."""

    memory: int
    processes: int
    room_for_forks: int
    """How many processes more there may be once the sandbox has forks, whose processes count as its own."""
    files: int
    disk: int


Rlimits = Sequence[tuple[int, tuple[int, int]]]
"""What `setrlimit` takes, ready made."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the zygote has mapped already, in bytes: memory is counted from there."""

    addresses: int
    data: int


def make_rlimits(limits: Limits, sizes: Sizes) -> Rlimits:
    """The limits of a process that runs the agent's code.

    Memory is limited as data: private memory that can be written to. The limit on addresses is far above it,
    for libraries, mapped files and reserved addresses are not memory in use.
    """
    most_processes = limits.processes + limits.room_for_forks
    wanted = (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NOFILE, limits.files, limits.files),
        (resource.RLIMIT_FSIZE, limits.disk, limits.disk),
        (resource.RLIMIT_NPROC, limits.processes, most_processes),
        (resource.RLIMIT_DATA, sizes.data + limits.memory, sizes.data + limits.memory),
        (resource.RLIMIT_AS, *[sizes.addresses + 4 * limits.memory + _SPARE_ADDRESSES] * 2),
        (_RLIMIT_SIGPENDING, _SIGNALS_AND_TIMERS, _SIGNALS_AND_TIMERS),
        (RLIMIT_MSGQUEUE, top_mark(), top_mark()),
    )
    made = []
    for kind, *values in wanted:
        _, most = resource.getrlimit(kind)
        soft, hard = (value if most == resource.RLIM_INFINITY else min(value, most) for value in values)
        made.append((kind, (soft, hard)))
    return made


def top_mark() -> int:
    """The mark of the processes of a sandbox that is no fork.

    Seccomp allows no message queue, so the limit on those is free to tell whose process one is. Processes
    inherit it, code of the agent's may not set it, and it can be lowered, as it is for each generation of
    forks, without any privilege. Our own processes have a higher limit.
    """
    _, most = resource.getrlimit(RLIMIT_MSGQUEUE)
    return _TOP_MARK if most == resource.RLIM_INFINITY else min(_TOP_MARK, most - 1)


def mark_rlimits(rlimits: Rlimits, generations: int) -> Rlimits:
    """The same for a fork that is so many generations younger."""
    return [
        (kind, (soft - generations, hard - generations) if kind == RLIMIT_MSGQUEUE else (soft, hard))
        for kind, (soft, hard) in rlimits
    ]


def make_room(rlimits: Rlimits) -> Rlimits:
    """The same for a sandbox that has forks, whose processes count as its own."""
    return [
        (kind, (limit[1], limit[1]) if kind == resource.RLIMIT_NPROC else limit) for kind, limit in rlimits
    ]


def lock_child(rlimits: Rlimits, ruleset: int | None, seccomp: bytes | None) -> None:
    """What a process that runs the agent's code gives up on top of what the init has given up."""
    for kind, limit in rlimits:
        setrlimit(kind, limit)
    if ruleset is not None:
        landlock_restrict(ruleset)
        close(ruleset)
    if seccomp is not None:
        install_filter(seccomp)


def landlock_layers(ruleset: int | None, version: int) -> dict[str, str]:
    if ruleset is None:
        return {"landlock": "unavailable: this kernel has no Landlock, or it is switched off"}
    why = f"unavailable: Landlock ABI {version} cannot confine signals, {SIGNAL_SCOPE} can"
    return {"landlock": ON, "landlock signals": ON if version >= SIGNAL_SCOPE else why}


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


def make_signal_scope(version: int) -> int | None:
    """Landlock rules that confine signals and nothing else; None where this ABI cannot.

    A process under them reaches its own descendants and nothing else, so it may signal "every process" and
    so end them all at once: no fork can slip through.
    """
    if version < SIGNAL_SCOPE:
        return None
    return kernel.landlock_create(struct.pack("QQQ", 0, 0, _SIGNALS))


def make_ruleset(readable: Sequence[str], writable: Sequence[str], version: int) -> int | None:
    """Landlock rules for these paths, as a descriptor; None when the kernel has no Landlock.

    `version` is the ABI to use.
    """
    if not version:
        return None
    every = (1 << 13) - 1
    every |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = every | (_DEVICE_CONTROL if version >= 5 else 0)
    attributes = struct.pack("Q", handled)
    if version >= 4:
        attributes += struct.pack("Q", 3)  # TCP bind and connect: no port is granted
    if version >= SIGNAL_SCOPE:
        attributes += struct.pack("Q", _ABSTRACT_SOCKETS | _SIGNALS)  # none to outside
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


def own_sizes() -> Sizes:
    """What this process has mapped."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = [int(word) for word in file.read().split()]
    except OSError:
        return Sizes(512 << 20, 64 << 20)  # /proc is out of sight: leave room for the interpreter
    return Sizes(pages[0] * resource.getpagesize(), pages[5] * resource.getpagesize())
