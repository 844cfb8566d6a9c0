"""The seccomp filter: what a sandbox may ask of the kernel, compiled by libseccomp.

Default deny: a call that is not named here does not exist (ENOSYS), whatever a later kernel adds. Calls
that escapes are made of are refused with EPERM, so that a program which tries one gets an honest answer.

Every process of a sandbox has one of two programs, `PRIVATE_ROOT` or `SHARED_ROOT`; an agent's processes on a
writable root have `WRITABLE_ROOT` and `BESIDE_INIT` instead. Of the first two, those that run the
agent's code have one more on top, `AGENT` or `AGENT_WITHOUT_SIGNALS`, which takes away what the init needs
and the agent does not: above all, to change anything about another process.

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

from .syscalls import (
    ALLOWED,
    CHANGES_OF_FILES,
    FILE_DESCRIPTOR_PASSING,
    REFUSED,
    SIGNALS_BY_ID,
    TIMERS,
    WORKSPACE,
)

__all__ = [
    "AGENT",
    "AGENT_WITHOUT_SIGNALS",
    "BESIDE_INIT",
    "KINDS",
    "PRIVATE_ROOT",
    "SHARED_ROOT",
    "WRITABLE_ROOT",
    "Compiled",
    "Rule",
    "compile_filter",
    "rules",
    "shipped_file",
]

PRIVATE_ROOT, SHARED_ROOT = "private-root", "shared-root"
"""For sandboxes with a private root, and for those that share the machine's."""
AGENT, AGENT_WITHOUT_SIGNALS = "agent", "agent-without-signals"
"""For processes that run the agent's code. The latter is for kernels whose Landlock does not confine signals,
where there is no process namespace either."""
WRITABLE_ROOT = "writable-root"
"""For an agent's processes on a root file system of their own that they may change."""
BESIDE_INIT = "beside-init"
"""For the same processes, besides: it keeps them from changing the limits of their init, which is ours with
the user id of an agent that is root. Those of other processes they may change, which takes a program of its
own: no condition of a default-deny program says "any number but 1"."""
KINDS = (PRIVATE_ROOT, SHARED_ROOT, AGENT, AGENT_WITHOUT_SIGNALS, WRITABLE_ROOT, BESIDE_INIT)

_NEW_NAMESPACES = 0x7E020080
"""Every namespace flag of clone: user, pid, net, ipc, uts, cgroup, mount, time."""
_SOCKET_TYPE, _STREAM, _PACKETS = 0xF, 1, 5
_UNIX = 1
_OWN_FAMILIES = (_UNIX, 2, 10)
"""Of sockets in a network namespace of their own: unix, IPv4 and IPv6."""
_NETLINK, _ROUTE = 16, 0
"""Programs list network interfaces with the latter, a protocol of the former."""
_INIT = 1
"""The process id of the first process in its process namespace."""
_OWN_GROUP = 1
"""The process group, for `setpriority`; 0 is one process, and 2 all of a user."""
_NO_RANDOM_ADDRESSES = 0x0040000
_INT = 0xFFFFFFFF
"""The part of a register that the kernel reads of an int: a refusal must ignore the rest."""
_RLIMIT_NPROC, _RLIMIT_MSGQUEUE = 6, 12
_SET_OWNER, _SET_SOCKET_OWNER = (8, 15), (0x8901, 0x8902)
"""F_SETOWN, F_SETOWN_EX, FIOSETOWN and SIOCSPGRP: which process gets a signal when data arrives."""
SHIPPED = Path(__file__).parent / "filters"
ARCHITECTURES = {"x86_64": "X86_64", "aarch64": "AARCH64"}
"""What the shipped programs are for: the machine's name, and libseccomp's."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The filter as a BPF program, or why there is none."""

    program: bytes | None
    why_not: str = ""


Condition = tuple[int, str, int, int]
"""An argument's position, `EQ`, `NE`, `GT` or `MASKED_EQ`, and one or two numbers."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A system call, whether it is allowed (it is refused if not), and under which conditions."""

    name: str
    allow: bool
    conditions: tuple[Condition, ...] = ()
    error: int = errno.EPERM
    """What a refused call fails with."""


def rules(kind: str) -> list[Rule]:
    """The rules of one of the `KINDS` of programs."""
    if kind in (AGENT, AGENT_WITHOUT_SIGNALS):
        return _agent_rules(signals=kind == AGENT)
    if kind == WRITABLE_ROOT:
        return _writable_root_rules()
    if kind == BESIDE_INIT:
        return _beside_init_rules()
    private_root = kind == PRIVATE_ROOT
    found = [Rule(name, False) for name in REFUSED]
    found += [Rule(name, True) for name in ALLOWED]
    found += [Rule(name, private_root) for name in CHANGES_OF_FILES]
    found.append(Rule("clone", True, ((0, "MASKED_EQ", _NEW_NAMESPACES, 0),)))
    # clone3 hides its flags in memory. ENOSYS, the default, makes libc fall back to clone.
    for kind_of_socket in (_STREAM, _PACKETS):  # datagram sockets could be pointed at any address later
        conditions = ((0, "EQ", _UNIX, 0), (1, "MASKED_EQ", _SOCKET_TYPE, kind_of_socket))
        found.append(Rule("socketpair", True, conditions))
    found += [Rule("personality", True, ((0, "EQ", persona, 0),)) for persona in (0, 0xFFFFFFFF)]
    if private_root:
        found.append(Rule("setns", True))  # forks enter their namespaces; there is no other door to enter
        found += [Rule(name, True) for name in TIMERS]
    return found


def _writable_root_rules() -> list[Rule]:
    """As for a private root, without the door to other namespaces, and with `WORKSPACE` allowed."""
    found = [Rule(name, False) for name in REFUSED if name not in WORKSPACE]
    allowed = dict.fromkeys((*ALLOWED, *CHANGES_OF_FILES, *TIMERS, *WORKSPACE))
    found += [Rule(name, True) for name in allowed if name not in ("socket", "socketpair")]
    # Of other families some, as vsock, know no namespaces: the machine and all sessions share their ports.
    found += [Rule("socket", True, ((0, "MASKED_EQ", _INT, family),)) for family in _OWN_FAMILIES]
    # Messages to oneself, as other protocols carry them, are memory that no control group counts.
    # The answer is that of a kernel without such a protocol: `useradd` then does without NETLINK_AUDIT.
    netlink: Condition = (0, "MASKED_EQ", _INT, _NETLINK)
    found.append(Rule("socket", True, (netlink, (2, "EQ", _ROUTE, 0))))
    found.append(Rule("socket", False, (netlink, (2, "NE", _ROUTE, 0)), errno.EPROTONOSUPPORT))
    found.append(Rule("socketpair", True, ((0, "MASKED_EQ", _INT, _UNIX),)))
    found.append(Rule("setns", False))
    found.append(Rule("clone", True, ((0, "MASKED_EQ", _NEW_NAMESPACES, 0),)))
    personas = (0, _NO_RANDOM_ADDRESSES, 0xFFFFFFFF)
    return found + [Rule("personality", True, ((0, "EQ", persona, 0),)) for persona in personas]


def _beside_init_rules() -> list[Rule]:
    """The kernel itself refuses to change how a process is scheduled that has more capabilities, and asks for
    the same user only where limits are changed. `WRITABLE_ROOT` decides about the rest."""
    return [Rule("prlimit64", False, ((0, "MASKED_EQ", _INT, _INIT), (2, "NE", 0, 0)))]


def _agent_rules(*, signals: bool) -> list[Rule]:
    """What code of the agent's may not do, though the init may. The other program decides about the rest."""
    found = [Rule(name, False) for name in FILE_DESCRIPTOR_PASSING]
    other_process: Condition = (0, "NE", 0, 0)
    changes: Condition = (2, "NE", 0, 0)
    found += [Rule(name, False, (other_process,)) for name in ("sched_setaffinity", "get_robust_list")]
    found.append(Rule("prlimit64", False, (other_process, changes)))
    found.append(Rule("setpriority", False, ((0, "GT", _OWN_GROUP, 0),)))
    found.append(Rule("setpriority", False, ((1, "NE", 0, 0),)))
    for limit in (_RLIMIT_NPROC, _RLIMIT_MSGQUEUE):  # the owner sets these for living processes
        found.append(Rule("setrlimit", False, ((0, "MASKED_EQ", _INT, limit),)))
        found.append(Rule("prlimit64", False, ((1, "MASKED_EQ", _INT, limit), changes)))
    if not signals:
        found.append(Rule("kill", False, (other_process,)))  # 0 is the own process group
        found += [Rule(name, False) for name in SIGNALS_BY_ID]
        found += [Rule("fcntl", False, ((1, "MASKED_EQ", _INT, command),)) for command in _SET_OWNER]
        found += [Rule("ioctl", False, ((1, "MASKED_EQ", _INT, command),)) for command in _SET_SOCKET_OWNER]
    return found


@functools.cache
def compile_filter(kind: str) -> Compiled:
    """One of the `KINDS` of programs."""
    try:
        import pyseccomp  # here, because importing it fails where libseccomp is not installed

        return Compiled(_compile(pyseccomp, kind, pyseccomp.Arch.NATIVE))
    except (ImportError, RuntimeError, OSError) as error:
        shipped = shipped_file(platform.machine(), kind)
        if shipped.is_file():
            return Compiled(shipped.read_bytes())
        return Compiled(
            None, f"libseccomp cannot be used ({error}), and no program for {platform.machine()} is shipped"
        )


def shipped_file(machine: str, kind: str) -> Path:
    """Where the program for these very rules and this architecture is, if it is shipped."""
    digest = hashlib.sha256(repr(rules(kind)).encode()).hexdigest()[:12]
    return SHIPPED / f"{machine}-{kind}-{digest}.bpf"


def _compile(lib: Any, kind: str, architecture: Any) -> bytes:
    everything_else = (
        lib.ERRNO(errno.ENOSYS) if kind in (PRIVATE_ROOT, SHARED_ROOT, WRITABLE_ROOT) else lib.ALLOW
    )
    made = lib.SyscallFilter(everything_else)
    if architecture != lib.Arch.NATIVE and not made.exist_arch(architecture):
        made.add_arch(architecture)
        made.remove_arch(lib.Arch.NATIVE)
    # A foreign ABI would walk around every number below.
    made.set_attr(lib.Attr.ACT_BADARCH, lib.KILL_PROCESS)
    with contextlib.suppress(OSError):  # an older libseccomp makes a list, which is as safe
        made.set_attr(lib.Attr.CTL_OPTIMIZE, 2)  # a tree instead of a list: less to do per call
    for rule in rules(kind):
        number = _number(lib, rule.name)
        if number >= 0:
            action = lib.ALLOW if rule.allow else lib.ERRNO(rule.error)
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
        for kind in KINDS:
            program = _compile(pyseccomp, kind, getattr(pyseccomp.Arch, name))
            shipped_file(machine, kind).write_bytes(program)


if __name__ == "__main__":
    _ship()
