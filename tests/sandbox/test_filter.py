"""The seccomp programs, as the kernel would run them: for both architectures, compiled here and shipped."""

import errno
import platform
import struct
import sys
from typing import Any

import pytest

from envtorch.sandbox import Sandbox, filter
from envtorch.sandbox.filter import (
    AGENT,
    AGENT_WITHOUT_SIGNALS,
    ARCHITECTURES,
    BESIDE_INIT,
    KINDS,
    PRIVATE_ROOT,
    SHARED_ROOT,
    WRITABLE_ROOT,
    compile_filter,
    rules,
    shipped_file,
)

try:
    import pyseccomp
except (ImportError, RuntimeError, OSError) as error:
    pytest.skip(f"libseccomp cannot be used: {error}", allow_module_level=True)

ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
UNKNOWN_PROTOCOL = 0x00050000 | errno.EPROTONOSUPPORT
UNIX, INTERNET, INTERNET_6, NETLINK = 1, 2, 10, 16
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEW_USER, THREAD = 0x10000000, 0x00010000
PROGRAMS = [(machine, kind) for machine in ARCHITECTURES for kind in KINDS]
ROOTS = [(machine, kind) for machine in ARCHITECTURES for kind in (PRIVATE_ROOT, SHARED_ROOT)]
AGENTS = [(machine, kind) for machine in ARCHITECTURES for kind in (AGENT, AGENT_WITHOUT_SIGNALS)]
HIGH = 1 << 32
"""Set in a register, where the kernel does not look for an int."""
NPROC, MSGQUEUE, CPU = 6, 12, 0


def decide(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the kernel would answer: classic BPF over `struct seccomp_data`."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, audit, 0, *padded)
    accumulator = place = 0
    while True:
        code, jump_true, jump_false, operand = struct.unpack_from("=HBBI", program, place * 8)
        place += 1
        match code:
            case 0x20:  # load a word
                (accumulator,) = struct.unpack_from("=I", data, operand)
            case 0x54:  # and
                accumulator &= operand
            case 0x05:  # always
                place += operand
            case 0x15 | 0x25 | 0x35 | 0x45:  # equal, greater, greater or equal, any bit
                tests = {0x15: accumulator == operand, 0x25: accumulator > operand}
                tests |= {0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
                place += jump_true if tests[code] else jump_false
            case 0x06:  # return
                return int(operand)
            case _:
                raise AssertionError(f"an instruction {code:#x} in a seccomp program")


def number_of(machine: str, name: str) -> int:
    return int(pyseccomp.resolve_syscall(getattr(pyseccomp.Arch, ARCHITECTURES[machine]), name))


@pytest.mark.parametrize(("machine", "kind"), PROGRAMS)
def test_the_shipped_program_is_for_these_rules(machine: str, kind: str) -> None:
    """If this fails: python -m envtorch.sandbox.filter"""
    program = shipped_file(machine, kind).read_bytes()
    audit = AUDIT[machine]
    unconditional = [rule for rule in rules(kind) if not rule.conditions]
    checked = 0
    for rule in unconditional:
        number = number_of(machine, rule.name)
        if number >= 0:
            assert decide(program, audit, number) == (ALLOW if rule.allow else REFUSE), rule.name
            checked += 1
    if kind in (PRIVATE_ROOT, SHARED_ROOT, WRITABLE_ROOT):
        assert checked > 200
        assert decide(program, audit, 99999) == ABSENT
        assert decide(program, audit, number_of(machine, "clone3")) == ABSENT
    else:
        assert checked >= 2 or kind == BESIDE_INIT, "all of its rules have conditions"
        assert decide(program, audit, 99999) == ALLOW


@pytest.mark.parametrize(("machine", "kind"), ROOTS)
def test_conditions_hold_in_the_shipped_program(machine: str, kind: str) -> None:
    program = shipped_file(machine, kind).read_bytes()

    def ask(name: str, *arguments: int) -> int:
        return decide(program, AUDIT[machine], number_of(machine, name), *arguments)

    assert ask("clone", THREAD) == ALLOW
    assert ask("clone", NEW_USER | THREAD) == ABSENT
    assert ask("socketpair", 1, 1) == ask("socketpair", 1, 5 | 0o2000000) == ALLOW
    assert ask("socketpair", 1, 2) == ask("socketpair", 2, 1) == ABSENT
    assert ask("setns") == (ALLOW if kind == PRIVATE_ROOT else ABSENT)
    assert ask("timer_create") == (ALLOW if kind == PRIVATE_ROOT else ABSENT)
    assert ask("fchmod") == (ALLOW if kind == PRIVATE_ROOT else REFUSE)


@pytest.mark.parametrize(("machine", "kind"), AGENTS)
def test_the_agent_changes_no_process_but_its_own(machine: str, kind: str) -> None:
    program = shipped_file(machine, kind).read_bytes()

    def ask(name: str, *arguments: int) -> int:
        return decide(program, AUDIT[machine], number_of(machine, name), *arguments)

    for process in (1, 4711, HIGH, HIGH | 4711, 0xFFFFFFFF):
        assert ask("prlimit64", process, CPU, 0x7FFF0000) == REFUSE
        assert ask("prlimit64", process, CPU, 0) == ALLOW, "reading limits does no harm"
        assert ask("sched_setaffinity", process) == ask("get_robust_list", process) == REFUSE
        assert ask("setpriority", 0, process) == ask("setpriority", 1, process) == REFUSE
    assert ask("prlimit64", 0, CPU, 0x7FFF0000) == ask("sched_setaffinity", 0) == ALLOW
    assert ask("setpriority", 0, 0) == ask("setpriority", 1, 0) == ALLOW
    assert ask("setpriority", 2, 0) == REFUSE, "all processes of the user"
    for limit in (NPROC, MSGQUEUE):
        for word in (limit, HIGH | limit):
            assert ask("prlimit64", 0, word, 0x7FFF0000) == ask("setrlimit", word) == REFUSE
        assert ask("prlimit64", 0, limit, 0) == ALLOW
    assert ask("setrlimit", CPU) == ALLOW
    assert ask("sendmsg") == ask("sendmmsg") == REFUSE
    assert ask("sendto") == ask("recvmsg") == ALLOW


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_limits_are_changed_of_every_process_but_the_init(machine: str) -> None:
    program = shipped_file(machine, BESIDE_INIT).read_bytes()

    def ask(name: str, *arguments: int) -> int:
        return decide(program, AUDIT[machine], number_of(machine, name), *arguments)

    for init in (1, HIGH | 1):
        assert ask("prlimit64", init, CPU, 0x7FFF0000) == REFUSE
        assert ask("prlimit64", init, CPU, 0) == ALLOW, "reading limits does no harm"
    for process in (0, 2, 4711, 0x10001):
        assert ask("prlimit64", process, CPU, 0x7FFF0000) == ALLOW


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_writable_root_has_sockets_of_its_own_network_only(machine: str) -> None:
    program = shipped_file(machine, WRITABLE_ROOT).read_bytes()

    def ask(name: str, *arguments: int) -> int:
        return decide(program, AUDIT[machine], number_of(machine, name), *arguments)

    for family in (UNIX, INTERNET, INTERNET_6):
        assert ask("socket", family, 1, 0) == ask("socket", family, 2, 17) == ALLOW
    assert ask("socket", NETLINK, 3, 0) == ask("socket", HIGH | NETLINK, 3, 0) == ALLOW
    for protocol in (*range(1, 24), HIGH | 2, 0xFFFFFFFF):
        assert ask("socket", NETLINK, 3, protocol) == UNKNOWN_PROTOCOL
        assert ask("socket", HIGH | NETLINK, 3, protocol) == UNKNOWN_PROTOCOL
    for family in (17, 38, 40):  # packet, alg, vsock
        assert ask("socket", family, 3, 0) == ABSENT
    assert ask("io_setup", 1) == ABSENT, "its slots are the machine's"


@pytest.mark.parametrize(("machine", "kind"), AGENTS)
def test_signals_are_refused_where_nothing_else_confines_them(machine: str, kind: str) -> None:
    program = shipped_file(machine, kind).read_bytes()
    answer = ALLOW if kind == AGENT else REFUSE

    def ask(name: str, *arguments: int) -> int:
        return decide(program, AUDIT[machine], number_of(machine, name), *arguments)

    for process in (1, 4711, HIGH, HIGH | 4711, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
        assert (
            ask("kill", process, 9) == ask("tkill", process, 9) == ask("tgkill", process, process) == answer
        )
    assert ask("rt_sigqueueinfo") == ask("rt_tgsigqueueinfo") == ask("pidfd_send_signal") == answer
    for high in (0, HIGH):
        assert ask("fcntl", 3, 8 | high) == ask("fcntl", 3, 15 | high) == answer
        assert ask("ioctl", 3, 0x8901 | high) == ask("ioctl", 3, 0x8902 | high) == answer
    assert ask("kill", 0, 9) == ask("fcntl", 3, 3) == ask("ioctl", 3, 0x5401) == ALLOW


@pytest.mark.parametrize(("machine", "kind"), PROGRAMS)
def test_a_foreign_architecture_is_killed(machine: str, kind: str) -> None:
    program = shipped_file(machine, kind).read_bytes()
    for audit in (0x40000003, *(other for name, other in AUDIT.items() if name != machine)):
        assert decide(program, audit, number_of(machine, "read")) == KILL
    if machine == "x86_64":  # x32: the same audit value, and a bit in the number
        assert decide(program, AUDIT[machine], 0x40000000) == KILL


def test_libseccomp_here_compiles_what_is_shipped() -> None:
    if platform.machine() not in ARCHITECTURES:
        pytest.skip(f"no program is shipped for {platform.machine()}")
    for kind in KINDS:
        ours = shipped_file(platform.machine(), kind).read_bytes()
        theirs = compile_filter(kind).program
        assert theirs is not None
        audit = AUDIT[platform.machine()]
        for number in range(600):
            assert decide(ours, audit, number) == decide(theirs, audit, number), number


def test_without_libseccomp_the_shipped_program_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    uncached: Any = compile_filter.__wrapped__
    for kind in KINDS:
        expected = shipped_file(platform.machine(), kind)
        assert uncached(kind).program == expected.read_bytes()
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    found = uncached(PRIVATE_ROOT)
    assert found.program is None
    assert "no program for pdp11 is shipped" in found.why_not


def test_the_shipped_program_locks_a_live_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    from envtorch.sandbox import Policy, zygotes

    shipped = {kind: shipped_file(platform.machine(), kind).read_bytes() for kind in KINDS}
    monkeypatch.setattr(zygotes, "compile_filter", lambda kind: filter.Compiled(shipped[kind]))
    with Sandbox(Policy(readable=("/usr/share",))) as sandbox:  # a zygote of its own
        if sandbox.report().grade != "host":
            pytest.skip("namespaces are not allowed here")
        assert sandbox.report().layers["seccomp"] == "on"
        assert sandbox.run("import socket; socket.socket()").exception is not None
        assert sandbox.run("sum(range(10))").json() == 45
