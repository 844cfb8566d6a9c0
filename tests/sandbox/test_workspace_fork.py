"""Copies of sessions on a writable root, and what they leave."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from envtorch.errors import EnvironmentFailed, Unsupported
from envtorch.sandbox import CommandOutcome, Workspace, workspace_channel
from envtorch.sandbox.guest.processes import status
from envtorch.sandbox.root_stores import StoreReply, root_store_for
from envtorch.sandbox.workspace_channel import WorkspaceChannel
from tests.sandbox.roots import HOST, SLEEPER, mounts_here, require_host_root
from tests.support import eventually


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    require_host_root()
    with Workspace(HOST) as made:
        yield made


def test_a_copy_has_the_files_and_the_state_of_the_shell(workspace: Workspace) -> None:
    workspace.run(
        "mkdir /job; cd /job; echo one > a; rm -r /etc/ssl; declare -A map=([k]='a b'); set -o pipefail"
    )
    workspace.run(
        "greet() { echo hello $1; }; export -f greet; alias q='echo alias'; umask 027; readonly fixed=1; v=$'two\\nlines'"
    )
    (copy,) = workspace.fork()
    with copy:
        answer = copy.run(
            'pwd; cat a; ls -d /etc/ssl; echo "${map[k]} $fixed $v"; bash -c "greet x"; q; umask'
        )
        assert answer.output.splitlines() == [
            "/job",
            "one",
            "ls: cannot access '/etc/ssl': No such file or directory",
            "a b 1 two",
            "lines",
            "hello x",
            "alias",
            "0027",
        ]
        assert copy.run("false | true").exit_code == 1  # pipefail
        copy.run("echo two > a; greet() { :; }")
        assert workspace.run("cat a; greet y; pwd").output == "one\nhello y\n/job\n"
        assert copy.run("cat a").output == "two\n"


def test_a_copy_has_the_options_of_the_shell_and_ends_at_a_failure_as_its_parent_does(
    workspace: Workspace,
) -> None:
    workspace.run("greet() { echo hello; }; alias q='echo alias'; function set { sleep 1000; }")
    workspace.run(
        r"\builtin set -o errexit -o nounset -o pipefail -o noglob -o errtrace; shopt -s nocasematch"
    )
    told = r"\builtin set +o; \builtin shopt; echo /*; greet; q"
    before = workspace.run(told).output
    assert "set -o errexit" in before
    (copy,) = workspace.fork()
    with copy:
        assert copy.run(told).output == before
        ends = [session.run("false; echo after").outcome for session in (workspace, copy)]
        assert ends == [CommandOutcome.SHELL_ENDED] * 2


def test_a_copy_of_a_shell_without_errexit_goes_on_after_a_failure(workspace: Workspace) -> None:
    workspace.run("set -E; shopt -s nocasematch")
    (copy,) = workspace.fork()
    with copy:
        assert copy.run("false; echo after").output == "after\n"


def test_a_copy_keeps_the_names_of_hosts_that_the_session_wrote(workspace: Workspace) -> None:
    workspace.run(
        "echo 10.1.1.1 database >> /etc/hosts; rm /etc/hostname; echo search here > /etc/resolv.conf"
    )
    told = "cat /etc/hosts /etc/resolv.conf; ls /etc/hostname"
    before = workspace.run(told).output
    assert "database" in before
    (copy,) = workspace.fork()
    with copy:
        assert copy.run(told).output == before


def test_copies_outlive_their_parent_and_are_copied_again() -> None:
    require_host_root()
    parent = Workspace(HOST)
    parent.run("echo parent > /root/f")
    first, second = parent.fork(2)
    parent.close()
    with first, second:
        first.run("echo first >> /root/f")
        (grandchild,) = first.fork()
        first.close()
        with grandchild:
            assert grandchild.run("cat /root/f").output == "parent\nfirst\n"
        assert second.run("cat /root/f").output == "parent\n"


def test_background_processes_are_named_and_refused_or_dropped_when_told(workspace: Workspace) -> None:
    workspace.run(f"echo kept > /root/f; {SLEEPER}; exec 5>/root/open; echo to >&5")
    with pytest.raises(Unsupported, match=r"sleep \(\d+\)"):
        workspace.fork()
    (copy,) = workspace.fork(drop_processes=True)
    with copy:
        assert copy.processes() == []
        assert copy.run("cat /root/f").output == "kept\n"
        assert [process.name for process in workspace.processes()] == ["sleep"]
        assert workspace.run("jobs -r >/root/j; grep -c sleep /root/j").output == "1\n"


def test_a_file_open_for_writing_is_copied_as_it_is(workspace: Workspace) -> None:
    workspace.run("exec 5>/root/log; echo first >&5")
    (copy,) = workspace.fork()
    with copy:
        workspace.run("echo second >&5")
        assert copy.run("cat /root/log").output == "first\n"
        assert workspace.run("cat /root/log").output == "first\nsecond\n"


def test_a_deleted_file_that_is_open_for_reading_keeps_nothing_from_being_frozen(
    workspace: Workspace,
) -> None:
    workspace.run("echo one > /root/gone; exec 5< /root/gone; rm /root/gone; echo two > /root/there")
    before = len(workspace.stack())
    assert workspace.run("cat <&5; cat /root/there; echo three > /root/later").output == "one\ntwo\n"
    assert len(workspace.stack()) == before + 1


def test_a_frozen_layer_is_written_to_by_nobody(workspace: Workspace) -> None:
    """The shell stays in a directory of the old root until it is told to enter it again."""
    workspace.run("mkdir /root/here; cd /root/here; exec 5< .")
    (copy,) = workspace.fork()
    with copy:
        assert "Read-only file system" in workspace.run("echo x > /proc/self/fd/5/file").output
        assert workspace.run("echo x > file; ls").output == "file\n"
        assert copy.run("ls").output == ""


def test_a_deep_line_of_copies_is_flattened(workspace: Workspace) -> None:
    workspace.run("mkdir -p /job/d; echo x > /job/d/gone; ln -s /job /job/link; echo keep > /job/kept")
    workspace.stack()
    workspace.run(
        "rm -r /job/d; mkdir /job/d; echo new > /job/d/new; rm /etc/passwd; chown 1000:1000 /job/kept"
    )
    for number in range(70):
        workspace.run(f"echo {number} > /job/n{number % 3}")
        workspace.stack()
    assert len(workspace._layers) < 20
    answer = workspace.run(
        "cd /job; ls /job/d /job/link/; cat n0 n1 n2; ls /etc/passwd; stat -c %u kept; cat kept"
    )
    assert answer.output.split() == [
        *["/job/d:", "new", "/job/link/:", "d", "kept", "link", "n0", "n1", "n2", "69", "67", "68"],
        *[
            "ls:",
            "cannot",
            "access",
            "'/etc/passwd':",
            "No",
            "such",
            "file",
            "or",
            "directory",
            "1000",
            "keep",
        ],
    ]


def test_nothing_is_left_of_closed_sessions() -> None:
    require_host_root()
    mounts = mounts_here()
    Workspace(HOST).close()
    assert HOST.root is not None
    inside = Path(f"/proc/{root_store_for(HOST.root).process.pid}/mountinfo")
    before = set(os.listdir("/proc/self/fd"))
    stored = inside.read_text()  # images that other tests have built are kept
    for _ in range(3):
        with Workspace(HOST) as workspace:
            workspace.run("sleep 300 & setsid sleep 300 & echo x > /root/x")
            (copy,) = workspace.fork(drop_processes=True)
            init = workspace._channel.process()
            group = workspace._group
            copy.close()
        assert init is not None
        assert not Path(f"/proc/{init}").exists() or "Z" in Path(f"/proc/{init}/stat").read_text()
        assert group is None or not any(folder.exists() for folder in group.folders.values())
    assert set(os.listdir("/proc/self/fd")) == before
    assert mounts_here() == mounts
    assert inside.read_text() == stored


@pytest.mark.parametrize(
    "trick",
    [
        "rm -rf /run",
        "rm -rf /run; ln -s /dev /run",
        "rm -rf /run; touch /run",
        "rm -f /etc/hosts; mkdir /etc/hosts",
        "rm -f /etc/hosts; mkfifo /etc/hosts",
        "rm -f /etc/resolv.conf; ln -s /etc/passwd /etc/resolv.conf",
        "cd /; rm -rf /tmp; ln -s /nonexistent /tmp",
        "cd /; rm -rf /root; ln -s /nonexistent /root",
        "rm -rf /etc; touch /etc",
        "chmod 0 /",
    ],
)
def test_a_session_is_copied_whatever_was_done_to_its_folders(workspace: Workspace, trick: str) -> None:
    workspace.run(trick)
    workspace.run("echo before > /var/mark")
    (copy,) = workspace.fork()
    with copy:
        assert copy.run("cat /var/mark; ls -d /dev/null /proc/self").output.split() == [
            "before",
            "/dev/null",
            "/proc/self",
        ]
    assert workspace.run("echo after >> /var/mark; cat /var/mark").output == "before\nafter\n"
    assert "before" in workspace.read_file("/var/mark").decode()


def test_a_copy_that_cannot_be_made_leaves_the_session_as_it_was(workspace: Workspace) -> None:
    workspace.run("echo before > /root/mark")
    ask = workspace._channel.ask

    def refuse(request: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[StoreReply, list[int]]:
        """Has the init enter what is no root."""
        if request["op"] != "reenter":
            return ask(request, descriptors)
        with open("/dev/null", "rb") as file:
            return ask(request, [file.fileno()])

    workspace._channel.ask = refuse  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFailed, match="could not be copied"):
        workspace.fork()
    workspace._channel.ask = ask  # type: ignore[method-assign]
    assert workspace.run("echo after >> /root/mark; cat /root/mark").output == "before\nafter\n"
    (copy,) = workspace.fork()
    with copy:
        assert copy.run("cat /root/mark").output == "before\nafter\n"


def test_a_session_that_does_not_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    require_host_root()
    started: list[int] = []

    def hang(channel: WorkspaceChannel) -> None:
        process = channel.process()
        assert process is not None
        started.append(process)
        os.kill(process, signal.SIGSTOP)
        raise EnvironmentFailed("it did not answer")

    monkeypatch.setattr(workspace_channel, "_CLOSE_S", 0.1)
    monkeypatch.setattr(WorkspaceChannel, "await_ready", hang)
    with pytest.raises(EnvironmentFailed, match="did not answer"):
        Workspace(HOST)
    eventually(lambda: not is_alive(started[0]), "the end of the session's init")


def is_alive(process: int) -> bool:
    found = status(process)
    return found is not None and found.lives


def test_functions_and_aliases_with_the_names_of_builtins_hold_up_no_copy(workspace: Workspace) -> None:
    names = "cd printf read history jobs eval umask shopt return set unset alias exec ["
    define = "; ".join(f"function {name} {{ sleep 1000; }}" for name in names.split())
    workspace.run("value=kept; ours() { echo called; }; export -f ours; mkdir /place; cd /place")
    workspace.run("alias builtin='sleep 1000' command='sleep 1000'")
    workspace.run(define)
    answer = workspace.run('echo "$value $PWD"', timeout_s=20)
    assert (answer.outcome, answer.output) == (CommandOutcome.OK, "kept /place\n")
    (copy,) = workspace.fork()
    with copy:
        answer = copy.run('echo "$value $PWD"; ours; bash -c ours', timeout_s=20)
        assert answer.output.splitlines() == ["kept /place", "called", "called"]
    assert workspace.run("echo after", timeout_s=20).output == "after\n"
