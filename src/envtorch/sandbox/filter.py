"""The seccomp filter: what a sandbox may ask of the kernel, compiled by libseccomp.

Default deny: a call that is not named here does not exist (ENOSYS), whatever a later kernel adds. Calls
that escapes are made of are refused with EPERM, so that a program which tries one gets an honest answer.

libseccomp compiles the filter on the machine that uses it. For machines without that library, as a small
container image may be, the same programs come with the package, compiled ahead by

    python -m envtorch.sandbox.filter

which is to be run whenever a rule changes: a program for other rules than these is never used.
"""

import contextlib
import errno
import functools
import hashlib
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .syscalls import ALLOWED, CHANGES_OF_FILES, REFUSED

__all__ = ["Compiled", "Rule", "compile_filter", "rules", "shipped_file"]

_NEW_NAMESPACES = 0x7E020080
"""Every namespace flag of clone: user, pid, net, ipc, uts, cgroup, mount, time."""
_SOCKET_TYPE, _STREAM, _PACKETS = 0xF, 1, 5
_UNIX = 1
SHIPPED = Path(__file__).parent / "filters"
ARCHITECTURES = {"x86_64": "X86_64", "aarch64": "AARCH64"}
"""What the shipped programs are for: the machine's name, and libseccomp's."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The filter as a BPF program, or why there is none."""

    program: bytes | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A system call, whether it is allowed (it is refused if not), and under which conditions."""

    name: str
    allow: bool
    conditions: tuple[tuple[int, str, int, int], ...] = ()
    """An argument's position, `EQ` or `MASKED_EQ`, and one or two numbers."""


def rules(*, private_root: bool) -> list[Rule]:
    """The rules for sandboxes with a private root, or for those that share the machine's."""
    found = [Rule(name, False) for name in REFUSED]
    found += [Rule(name, True) for name in ALLOWED]
    found += [Rule(name, private_root) for name in CHANGES_OF_FILES]
    found.append(Rule("clone", True, ((0, "MASKED_EQ", _NEW_NAMESPACES, 0),)))
    # clone3 hides its flags in memory. ENOSYS, the default, makes libc fall back to clone.
    for kind in (_STREAM, _PACKETS):  # datagram sockets could be pointed at any address later
        conditions = ((0, "EQ", _UNIX, 0), (1, "MASKED_EQ", _SOCKET_TYPE, kind))
        found.append(Rule("socketpair", True, conditions))
    found += [Rule("personality", True, ((0, "EQ", persona, 0),)) for persona in (0, 0xFFFFFFFF)]
    if private_root:
        found.append(Rule("setns", True))  # forks enter their namespaces; there is no other door to enter
    return found


@functools.cache
def compile_filter(*, private_root: bool) -> Compiled:
    """The filter for sandboxes with a private root, or for those that share the machine's."""
    try:
        import pyseccomp  # here, because importing it fails where libseccomp is not installed

        return Compiled(_compile(pyseccomp, private_root, pyseccomp.Arch.NATIVE))
    except (ImportError, RuntimeError, OSError) as error:
        shipped = shipped_file(platform.machine(), private_root=private_root)
        if shipped.is_file():
            return Compiled(shipped.read_bytes())
        return Compiled(
            None, f"libseccomp cannot be used ({error}), and no program for {platform.machine()} is shipped"
        )


def shipped_file(machine: str, *, private_root: bool) -> Path:
    """Where the program for these very rules and this architecture is, if it is shipped."""
    digest = hashlib.sha256(repr(rules(private_root=private_root)).encode()).hexdigest()[:12]
    return SHIPPED / f"{machine}-{'private' if private_root else 'shared'}-root-{digest}.bpf"


def _compile(lib: Any, private_root: bool, architecture: Any) -> bytes:
    made = lib.SyscallFilter(lib.ERRNO(errno.ENOSYS))
    if architecture != lib.Arch.NATIVE and not made.exist_arch(architecture):
        made.add_arch(architecture)
        made.remove_arch(lib.Arch.NATIVE)
    # A foreign ABI would walk around every number below.
    made.set_attr(lib.Attr.ACT_BADARCH, lib.KILL_PROCESS)
    with contextlib.suppress(OSError):  # an older libseccomp makes a list, which is as safe
        made.set_attr(lib.Attr.CTL_OPTIMIZE, 2)  # a tree instead of a list: less to do per call
    for rule in rules(private_root=private_root):
        number = _number(lib, rule.name)
        if number >= 0:
            action = lib.ALLOW if rule.allow else lib.ERRNO(errno.EPERM)
            made.add_rule(action, number, *_conditions(lib, rule))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


def _number(lib: Any, name: str) -> int:
    """Negative for a call of other architectures, or one that this libseccomp has not heard of."""
    with contextlib.suppress(ValueError, OSError):
        return int(lib.resolve_syscall(lib.Arch.NATIVE, name))
    return -1


def _conditions(lib: Any, rule: Rule) -> Iterator[Any]:
    for position, comparison, first, second in rule.conditions:
        numbers = (first, second) if comparison == "MASKED_EQ" else (first,)
        yield lib.Arg(position, getattr(lib, comparison), *numbers)


def _ship() -> None:
    import pyseccomp

    SHIPPED.mkdir(exist_ok=True)
    for stale in SHIPPED.glob("*.bpf"):
        stale.unlink()
    for machine, name in ARCHITECTURES.items():
        for private_root in (True, False):
            program = _compile(pyseccomp, private_root, getattr(pyseccomp.Arch, name))
            shipped_file(machine, private_root=private_root).write_bytes(program)


if __name__ == "__main__":
    _ship()
