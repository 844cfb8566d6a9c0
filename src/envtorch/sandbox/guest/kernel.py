"""System calls that the standard library of Python 3.11 has no wrapper for.

Called by their libc names wherever libc has them, so that no table of numbers per architecture is
needed; the few that libc lacks carry the same number on every architecture.
"""

import ctypes
import os
import signal
import struct

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
_held = ctypes.PyDLL(None, use_errno=True)  # calls that keep the interpreter lock
_held.syscall.restype = ctypes.c_long
_python = ctypes.pythonapi
_python.PyOS_BeforeFork.restype = None
_python.PyOS_AfterFork_Child.restype = None
_python.PyOS_AfterFork_Parent.restype = None
libc.mmap.restype = ctypes.c_void_p
# Looked up once, in the zygote, and not anew in every sandbox.
_prctl, _capset, _syscall, _setns = libc.prctl, libc.capset, libc.syscall, libc.setns
_clone = _held.syscall

NEW_USER, NEW_PID, NEW_MOUNT = 0x10000000, 0x20000000, 0x00020000
NEW_NET, NEW_IPC, NEW_UTS = 0x40000000, 0x08000000, 0x04000000
NAMESPACES = {
    "user": NEW_USER,
    "mnt": NEW_MOUNT,
    "pid": NEW_PID,
    "net": NEW_NET,
    "ipc": NEW_IPC,
    "uts": NEW_UTS,
}
"""The file below /proc/self/ns and the flag of each namespace, in the order to enter them."""

READ_ONLY, NO_SETUID, NO_DEVICES, NO_EXEC = 1, 2, 4, 8
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
DETACH = 2

_SYS_CLONE3 = 435
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_CAPBSET_DROP, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 24, 36, 38
_SECCOMP_MODE_FILTER = 2
_CLONE3_SIZE = 64
_NO_CAPABILITIES = struct.pack("Ii", 0x20080522, 0), bytes(24)


def check(result: int, what: str) -> int:
    """`result`, or the `OSError` that errno names."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    arguments = [text.encode() if text is not None else None for text in (source, target, kind)]
    options = data.encode() if data is not None else None
    check(libc.mount(*arguments, ctypes.c_ulong(flags), options), f"mount {kind or source} on {target}")


def make_read_only(target: str) -> None:
    """Make the mount at `target` and all below it read-only and free of set-user-id."""
    attributes = struct.pack("QQQQ", READ_ONLY | NO_SETUID, 0, 0, 0)
    recursive = ctypes.c_uint(0x8000)
    result = _syscall(_SYS_MOUNT_SETATTR, -100, target.encode(), recursive, attributes, len(attributes))
    check(result, f"mount_setattr {target}")


def pivot_root(new_root: str) -> None:
    """Make `new_root` the root of this mount namespace and let go of the old one."""
    os.chdir(new_root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount of the old root")
    os.chdir("/")


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def new_namespaces(flags: int) -> bytes:
    """What `fork_into` takes: the arguments of `clone3` for a child in these namespaces."""
    return struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)


def fork_into(namespaces: bytes) -> int:
    """`os.fork` with the child born into new namespaces: one fork where unsharing them first takes two.

    Python's C API asks every caller of a function like `fork` for the calls before and after it. The caller
    has one thread only.
    """
    _python.PyOS_BeforeFork()
    process: int = _clone(_SYS_CLONE3, namespaces, _CLONE3_SIZE)
    if process == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    return process if process >= 0 else check(process, "clone3")


def setns(descriptor: int, flag: int) -> None:
    check(_setns(descriptor, flag), "setns")


def set_hostname(name: str) -> None:
    check(libc.sethostname(name.encode(), len(name)), "sethostname")


def set_parent_death_signal(number: int) -> None:
    check(_prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "PR_SET_PDEATHSIG")


def set_dumpable(dumpable: bool) -> None:
    """A process that is not dumpable cannot be traced, nor its /proc entries read, by its own uid."""
    check(_prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "PR_SET_DUMPABLE")


def become_subreaper() -> None:
    check(_prctl(_PR_SET_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def drop_capabilities() -> None:
    """Empty every capability set, the bounding set too where that is allowed."""
    capability = 0
    while _prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1  # until there are no more, or none may be dropped: then the set is empty anyway
    header, sets = _NO_CAPABILITIES
    if _capset(header, sets):
        check(-1, "capset")


class Seccomp:
    """A BPF program that is ready to be installed."""

    def __init__(self, program: bytes) -> None:
        self._code = ctypes.create_string_buffer(program, len(program))
        self.header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(self._code))


def lock_down(seccomp: bytes | None) -> None:
    """No new privileges, no capabilities, and the filter with this header: for good, and for all children."""
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        check(-1, "PR_SET_NO_NEW_PRIVS")
    drop_capabilities()
    if seccomp is not None:
        install_filter(seccomp)


def install_filter(seccomp: bytes) -> None:
    """One more filter, by its header. Of several the strictest answer counts."""
    if _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, seccomp, 0, 0):
        check(-1, "seccomp")


def landlock_version() -> int:
    """The Landlock ABI of this kernel, 0 when it has none or it is switched off."""
    return max(0, int(_syscall(_SYS_LANDLOCK_CREATE, None, 0, 1)))


def landlock_create(attributes: bytes) -> int:
    ruleset = _syscall(_SYS_LANDLOCK_CREATE, attributes, len(attributes), 0)
    return check(int(ruleset), "landlock_create_ruleset")


def landlock_add(ruleset: int, rights: int, descriptor: int) -> None:
    rule = struct.pack("=Qi", rights, descriptor)
    check(_syscall(_SYS_LANDLOCK_ADD, ruleset, 1, rule, 0), "landlock_add_rule")


def landlock_restrict(ruleset: int) -> None:
    check(_syscall(_SYS_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")


def private_copy(address: int, data: bytes, protection: int) -> None:
    """Replace the mapping at `address` by private memory holding `data`."""
    private_fixed_anonymous = 0x02 | 0x10 | 0x20
    size = len(data)
    place = ctypes.c_void_p(address)
    got = libc.mmap(place, ctypes.c_size_t(size), 3, private_fixed_anonymous, -1, ctypes.c_long(0))
    if got != address:
        raise OSError(ctypes.get_errno(), "mmap of a private copy")
    ctypes.memmove(address, data, size)
    check(libc.mprotect(place, ctypes.c_size_t(size), protection), "mprotect")
