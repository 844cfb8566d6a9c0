"""What a process of the sandbox gives up, in the order in which it can be given up."""

import contextlib
import os
import resource
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import kernel

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


@dataclass(slots=True)
class Lockdown:
    """The layers of one sandbox: what is on, what is not and why, and what its children still have to do."""

    limits: Limits
    layers: dict[str, str] = field(default_factory=dict)
    ruleset: int | None = None

    def use_ruleset(self, ruleset: int | None) -> None:
        """Take the Landlock rules that every child of the init will put on."""
        self.ruleset = ruleset
        if ruleset is None:
            self.layers["landlock"] = "unavailable: this kernel has no Landlock, or it is switched off"
            return
        version = kernel.landlock_version()
        self.layers["landlock"] = ON
        enough = (
            "on" if version >= 6 else f"unavailable: Landlock ABI {version} cannot confine signals, 6 can"
        )
        self.layers["landlock signals"] = enough

    def lock_init(self, program: bytes | None, why_no_program: str) -> None:
        """What the init gives up for itself, and so for every process below it."""
        kernel.forbid_new_privileges()
        kernel.drop_capabilities()
        self.layers |= {"no_new_privs": ON, "capabilities": ON}
        if program is None:
            self.layers["seccomp"] = f"unavailable: {why_no_program}"
            return
        kernel.load_seccomp(program)
        self.layers["seccomp"] = ON

    def lock_child(self) -> None:
        """What a process that runs the agent's code gives up on top of that."""
        used = _virtual_size()
        limits = self.limits
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, limits.files),
            (resource.RLIMIT_FSIZE, limits.disk),
            (resource.RLIMIT_NPROC, limits.processes),
            (resource.RLIMIT_AS, used + limits.memory),
        ):
            _, most = resource.getrlimit(kind)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))
        if self.ruleset is not None:
            kernel.landlock_restrict(self.ruleset)
            os.close(self.ruleset)


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


def _virtual_size() -> int:
    """What is mapped already: the memory limit is counted from here, and libraries are not the agent's."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except OSError:
        return 512 * 1024 * 1024  # /proc is out of sight: leave room for the interpreter
    return pages * resource.getpagesize()
