"""The seccomp filter: what a sandbox may ask of the kernel, compiled by libseccomp.

Default deny: a call that is not named here does not exist (ENOSYS), whatever a later kernel adds. Calls
that escapes are made of are refused with EPERM, so that a program which tries one gets an honest answer.
"""

import contextlib
import errno
import functools
import tempfile
from dataclasses import dataclass
from typing import Any

from .syscalls import ALLOWED, CHANGES_OF_FILES, REFUSED

__all__ = ["Compiled", "compile_filter"]

_NEW_NAMESPACES = 0x7E020080
"""Every namespace flag of clone: user, pid, net, ipc, uts, cgroup, mount, time."""
_SOCKET_TYPE, _STREAM, _PACKETS = 0xF, 1, 5
_UNIX = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """The filter as a BPF program, or why there is none."""

    program: bytes | None
    why_not: str = ""


@functools.cache
def compile_filter(*, private_root: bool) -> Compiled:
    """The filter for sandboxes with a private root, or for those that share the machine's."""
    try:
        import pyseccomp  # here, because importing it fails where libseccomp is not installed
    except (ImportError, RuntimeError, OSError) as error:
        return Compiled(None, f"libseccomp cannot be used: {error}")
    try:
        rules = _rules(pyseccomp, private_root)
        with tempfile.TemporaryFile() as file:
            rules.export_bpf(file)
            file.seek(0)
            return Compiled(file.read())
    except OSError as error:
        return Compiled(None, f"libseccomp could not compile the filter: {error}")


def _rules(lib: Any, private_root: bool) -> Any:
    rules = lib.SyscallFilter(lib.ERRNO(errno.ENOSYS))
    # A foreign ABI would walk around every number below.
    rules.set_attr(lib.Attr.ACT_BADARCH, lib.KILL_PROCESS)
    with contextlib.suppress(OSError):  # an older libseccomp makes a list, which is as safe
        rules.set_attr(lib.Attr.CTL_OPTIMIZE, 2)  # a tree instead of a list: less to do per call
    refuse = lib.ERRNO(errno.EPERM)
    for name in REFUSED:
        _add(lib, rules, refuse, name)
    for name in [*ALLOWED, *(CHANGES_OF_FILES if private_root else ())]:
        _add(lib, rules, lib.ALLOW, name)
    for name in CHANGES_OF_FILES if not private_root else ():
        _add(lib, rules, refuse, name)
    _add_conditional(lib, rules, private_root)
    return rules


def _add_conditional(lib: Any, rules: Any, private_root: bool) -> None:
    """Calls of which some uses are harmless and some are not."""
    allow, arg = lib.ALLOW, lib.Arg
    _add(lib, rules, allow, "clone", arg(0, lib.MASKED_EQ, _NEW_NAMESPACES, 0))
    # clone3 hides its flags in memory. ENOSYS, the default, makes libc fall back to clone.
    for kind in (_STREAM, _PACKETS):  # datagram sockets could be pointed at any address later
        _add(
            lib, rules, allow, "socketpair", arg(0, lib.EQ, _UNIX), arg(1, lib.MASKED_EQ, _SOCKET_TYPE, kind)
        )
    for persona in (0, 0xFFFFFFFF):
        _add(lib, rules, allow, "personality", arg(0, lib.EQ, persona))
    if private_root:
        _add(lib, rules, allow, "setns")  # forks enter their namespaces; there is no other door to enter


def _add(lib: Any, rules: Any, action: int, name: str, *conditions: Any) -> None:
    try:
        number = lib.resolve_syscall(lib.Arch.NATIVE, name)
    except (ValueError, OSError):
        return
    if number < 0:
        return  # not a call of this architecture, or not one this libseccomp has heard of
    rules.add_rule(action, number, *conditions)
