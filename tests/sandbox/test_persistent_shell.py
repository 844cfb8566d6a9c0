"""Reports of the persistent shell: whose they are, and what becomes of those that are forged or malformed."""

from collections.abc import Iterator

import pytest

from envtorch.sandbox import CommandOutcome, Workspace
from tests.sandbox.roots import HOST, require_host_root

FORGERY = rb"""#!/bin/sh
for end in /proc/$PPID/fd/* /proc/self/fd/*; do
    case ${end##*/} in 0|1|2|63) continue;; esac
    case $(readlink $end) in
    socket:*|pipe:*) ( printf '0\0/root\0' > $end && echo wrote $(readlink $end) ) 2>/dev/null ;;
    esac
done
exit 7
"""
WRITE_AS_SHELL = (
    "for n in {10..30}; do if [ -S /proc/$BASHPID/fd/$n ]; then cat /root/forged >&$n; fi; done 2>/dev/null; "
)
"""The shell itself gives its sockets to a program."""


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    require_host_root()
    with Workspace(HOST) as made:
        yield made


def test_a_program_cannot_write_a_report(workspace: Workspace) -> None:
    workspace.write_file("/root/forge", FORGERY)
    workspace.run("chmod +x /root/forge; cd /usr")
    forged = workspace.run("/root/forge")
    assert (forged.exit_code, forged.directory) == (7, "/usr")
    assert "wrote socket:" not in forged.output
    assert "wrote pipe:" in forged.output  # of its output: what it writes there is output
    assert workspace.run("echo second; (exit 3)").exit_code == 3


def test_programs_inherit_neither_reports_nor_commands(workspace: Workspace) -> None:
    listing = "for end in /proc/self/fd/*; do readlink $end; done"
    workspace.write_file("/root/.bashrc", f"sh -c '{listing}' > /root/at-start\n".encode())
    workspace.run("exit")
    assert "socket:" not in workspace.run(f"cat /root/at-start; sh -c '{listing}'").output


def test_what_the_shell_writes_without_the_nonce_is_dropped(workspace: Workspace) -> None:
    for forged in ("0", "0\0/nowhere\0", "\0" * 9, "x" * 40_000):
        workspace.write_file("/root/forged", forged.encode())
        writing = workspace.run(WRITE_AS_SHELL + "cd /usr; (exit 4)")
        assert (writing.exit_code, writing.directory) == (4, "/usr")
        assert workspace.run("(exit 5)").exit_code == 5


def test_a_job_of_an_earlier_command_cannot_answer_a_later_one(workspace: Workspace) -> None:
    forged = (
        "for n in $(seq 10 30); do printf '\\0%s\\0000\\0/nowhere\\0' \"$__et_nonce\" >&$n; done 2>/dev/null"
    )
    workspace.run(f"( for i in $(seq 40); do {forged}; sleep 0.05; done ) & true")
    for code in (3, 4, 5):
        answer = workspace.run(f"sleep 0.2; (exit {code})")
        assert (answer.exit_code, answer.directory) == (code, "/root")


@pytest.mark.parametrize(
    "command",
    [
        f"readonly __et_status={'9' * 5000}",
        "readonly __et_status=99999999999999999999999999",
        "readonly __et_status=256",
        "readonly __et_status=word",
        "PWD=$(head -c 60000 /dev/zero | tr '\\0' x)",
    ],
    ids=["5000 digits", "26 digits", "256", "no number", "long directory"],
)
def test_a_malformed_report_ends_the_shell(workspace: Workspace, command: str) -> None:
    broken = workspace.run(command)
    if broken.outcome is CommandOutcome.OK:
        broken = workspace.run("true")
    assert (broken.outcome, broken.shell_ended) == (CommandOutcome.SHELL_ENDED, True)
    after = workspace.run("echo after; (exit 6)")
    assert (after.output, after.exit_code, after.directory) == ("after\n", 6, "/root")


def test_a_stray_break_and_a_late_interrupt_shift_no_result(workspace: Workspace) -> None:
    assert workspace.run("break; echo no").outcome is not CommandOutcome.SHELL_ENDED
    assert workspace.run("(exit 3)").exit_code == 3
    shell = workspace.run("echo $$").output.strip()
    arrived = f"until grep -q '^ShdPnd:.0*$' /proc/{shell}/status; do :; done"
    interrupted = workspace.execute(["sh", "-c", f"kill -INT {shell}; {arrived}"])  # it waits for a command
    assert interrupted.exit_status == 0, interrupted.stderr
    for code in (4, 5, 6):
        assert workspace.run(f"(exit {code})").exit_code == code


def test_the_nonce_is_not_known_while_a_command_runs(workspace: Workspace) -> None:
    workspace.run("set -a")
    assert workspace.run('env | grep -c "^__et_nonce=."; echo "[$__et_nonce]"').output == "0\n[]\n"
