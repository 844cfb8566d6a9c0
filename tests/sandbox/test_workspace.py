"""Sessions on a writable root: the persistent shell, files, what a package manager needs."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envtorch.errors import ConfigurationError, SessionLost
from envtorch.sandbox import CommandOutcome, Policy, Sandbox, Workspace
from tests.sandbox.roots import HOST, require_host_root


@pytest.fixture(scope="module")
def shared() -> Iterator[Workspace]:
    """One session for tests that leave nothing behind that another would notice."""
    require_host_root()
    with Workspace(HOST) as made:
        yield made


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    require_host_root()
    with Workspace(HOST) as made:
        yield made


def test_shells_and_operations_that_have_ended_are_forgotten(workspace: Workspace) -> None:
    for _ in range(3):
        assert workspace.run("exit 3").outcome is CommandOutcome.SHELL_ENDED
    assert workspace.execute(["true"]).ok
    assert not workspace._channel._jobs


def test_a_request_that_is_too_long_is_refused_and_the_session_goes_on(shared: Workspace) -> None:
    for size in (70_000, 300_000):
        with pytest.raises(OSError, match="shorten"):
            shared.read_file("x" * size)
        with pytest.raises(OSError, match="shorten"):
            shared.execute(["true", "x" * size])
    assert shared.execute(["true", "x" * 60_000]).ok


def test_a_policy_with_a_root_is_refused_where_it_means_nothing() -> None:
    for wrong in (
        {"root": "./relative"},
        {"root": "../outside"},
        {"root": ""},
        {"root": "host", "namespaces": False},
        {"root": "host", "open_files": 64},
    ):
        with pytest.raises(ConfigurationError):
            Policy(**wrong)
    with pytest.raises(ConfigurationError, match="for a Workspace"):
        Sandbox(Policy(root="host", open_files=256))
    with pytest.raises(ConfigurationError, match="needs a policy with a root"):
        Workspace(Policy())


def test_a_root_that_is_not_there_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no directory"):
        Workspace(Policy(root=str(tmp_path / "missing"), open_files=256))


def test_a_name_that_no_prepared_root_has_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="envtorch rootfs from-image never-prepared"):
        Workspace(Policy(root="never-prepared", open_files=256))


@pytest.mark.parametrize("line", ["exit 4", "exec false", "kill -9 $$"])
def test_a_start_file_that_ends_the_shell_is_an_outcome_and_the_shell_comes_back(
    workspace: Workspace, line: str
) -> None:
    workspace.write_file("/root/.bashrc", f"echo never seen; {line}\n".encode())
    answer = workspace.run("touch /root/was-run")
    assert (answer.outcome, answer.shell_ended) == (CommandOutcome.SHELL_ENDED, True)
    assert "not run" in answer.output
    if line == "exit 4":
        assert answer.exit_code == 4
    assert workspace.run("ls /root/was-run").exit_code != 0
    assert workspace.run("echo back; rm ~/.bashrc").output == "back\n"
    workspace.run("exit")
    assert workspace.run("echo as ever").output == "as ever\n"


def test_a_start_file_that_ends_the_shell_does_not_hinder_a_fork(workspace: Workspace) -> None:
    workspace.run("x=5; echo exit > ~/.bashrc")
    (copy,) = workspace.fork()
    with copy:
        assert copy.run("echo $x").output == "5\n"


def test_a_session_runs_as_another_user(workspace: Workspace) -> None:
    assert workspace.execute(["id", "-u"], user="nobody").stdout == b"65534\n"
    done = workspace.execute(["cat", "/proc/self/status"], user="1234:99")
    fields = dict(line.split(":", 1) for line in done.stdout.decode().splitlines())
    assert fields["Uid"].split() == ["1234"] * 4
    assert fields["Gid"].split() == ["99"] * 4
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
    absent = workspace.execute(["true"], user="no-such-user")
    assert b"no user 'no-such-user'" in absent.stderr


def test_the_shell_and_its_copies_run_as_the_user_of_the_session() -> None:
    require_host_root()
    with Workspace(HOST, user="nobody", directory="/tmp") as workspace:
        seen = workspace.run(
            "id -u; echo ${#USER}; touch mine && stat -c %U mine; touch /etc/x 2>&1; tty -s; echo $?"
        )
        assert seen.output.splitlines()[0] == "65534"
        assert "nobody" in seen.output
        assert "Permission denied" in seen.output
        workspace.write_file("/tmp/b", b"x")
        (copy,) = workspace.fork()
        with copy:
            assert copy.run("id -u; stat -c %U /tmp/b").output == "65534\nnobody\n"


def test_the_agent_is_root_inside_and_nobody_of_this_machine_outside(shared: Workspace) -> None:
    assert shared.run("id -u; hostname").output == "0\nsandbox\n"
    process = shared._channel.process()
    assert process is not None
    status = Path(f"/proc/{process}/status").read_text()
    user = int(status.partition("\nUid:")[2].split()[0])
    assert user >= 1_879_048_192


def test_directory_variables_functions_and_jobs_are_kept(workspace: Workspace) -> None:
    workspace.run("cd /usr; x=5; export y=6; f() { echo f $1 $x; }; alias hi='echo alias'; sleep 60 &")
    answer = workspace.run("pwd; f a; hi; bash -c 'echo $y'; kill %1 && echo killed")
    assert answer.output.splitlines() == ["/usr", "f a 5", "alias", "6", "killed"]
    assert answer.directory == "/usr"


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("true", 0, ""),
        ("false", 1, ""),
        ("(exit 7)", 7, ""),
        ("(exit 5); (echo $?)", 0, "5\n"),
        ("echo out; echo err >&2; printf end", 0, "out\nerr\nend"),
        ("cat <<E\na 'b\nE", 0, "a 'b\n"),
        ("cat", 0, ""),  # nothing to read, and not the next command
        ("no-such-program", 127, None),
        ("echo 'unterminated", 2, None),
        ("if true; then", 2, None),
        ("echo a; break; echo not run", 0, "a\n"),  # it leaves our own loop, which goes on
        ("echo é漢", 0, "é漢\n"),
    ],
)
def test_a_command_reports_its_status_and_its_output(
    shared: Workspace, command: str, code: int, output: str | None
) -> None:
    answer = shared.run(command)
    assert not answer.shell_ended
    if output is not None:
        assert (answer.exit_code, answer.output) == (code, output)
    else:
        assert answer.outcome is CommandOutcome.ERROR
        assert answer.output


def test_a_timeout_interrupts_the_command_and_keeps_the_shell(workspace: Workspace) -> None:
    workspace.run("x=kept")
    for command in ("sleep 100", "while :; do :; done", "trap '' INT; cat /dev/zero >/dev/null"):
        answer = workspace.run(f"({command})" if "trap" in command else command, timeout_s=0.3)
        assert answer.outcome is CommandOutcome.TIMED_OUT
        assert workspace.run("echo $x").output == "kept\n"


def test_a_shell_that_cannot_be_interrupted_is_replaced(workspace: Workspace) -> None:
    # Not by `trap '' INT`: bash forgets at times, on a busy machine, that it ignores the signal.
    answer = workspace.run("kill -STOP $$", timeout_s=0.3)
    assert answer.outcome is CommandOutcome.TIMED_OUT
    assert answer.shell_ended
    assert workspace.run("echo again").output == "again\n"


@pytest.mark.parametrize("command", ["exit 3", "exec sh -c 'echo last; exit 3'", "set -e; (exit 3)"])
def test_an_ended_shell_is_an_outcome_and_comes_back(workspace: Workspace, command: str) -> None:
    workspace.run("cd /usr; x=1")
    answer = workspace.run(command)
    assert (answer.outcome, answer.exit_code) == (CommandOutcome.SHELL_ENDED, 3)
    assert answer.shell_ended
    assert workspace.run("echo [$x]; pwd").output == "[]\n/root\n"


def test_a_killed_shell_comes_back(workspace: Workspace) -> None:
    assert workspace.run("kill -9 $$").shell_ended
    workspace.run("(sleep 0.1; kill -9 $$) & disown")
    workspace.execute(["sleep", "0.5"])
    assert workspace.run("echo here").output == "here\n"


def test_long_output_keeps_its_head_and_tail(shared: Workspace) -> None:
    answer = shared.run("echo first; yes | head -c 10000000; echo last")
    assert answer.output.startswith("first\n")
    assert answer.output.endswith("last\n")
    assert len(answer.output) < 2 * HOST.output_bytes
    assert answer.left_out_bytes == 10_000_011 - HOST.output_bytes


def test_a_background_job_holds_nothing_and_its_output_is_told_apart(workspace: Workspace) -> None:
    assert workspace.run("(sleep 0.2; echo late) & echo now").output == "now\n"
    workspace.execute(["sleep", "0.6"])
    answer = workspace.run("echo next")
    assert (answer.background, answer.output) == ("late\n", "next\n")


def test_what_a_program_leaves_running_does_not_hold_it_up(workspace: Workspace) -> None:
    done = workspace.execute(["bash", "-c", "sleep 300 & echo said; echo told >&2; exit 3"], timeout_s=60)
    assert (done.outcome.value, done.exit_status) == ("error", 3)
    assert (done.stdout, done.stderr) == (b"said\n", b"told\n")


def test_a_long_command_is_run_as_it_is(shared: Workspace) -> None:
    text = "x" * 100_000
    assert shared.run(f"printf %s {text} | wc -c").output.strip() == "100000"


def test_files_are_read_and_written_past_the_shell(shared: Workspace) -> None:
    shared.write_file("/job/deep/a.bin", bytes(range(256)) * 1000)
    assert shared.read_file("/job/deep/a.bin") == bytes(range(256)) * 1000
    shared.write_file("/job/notes.txt", b"one\ntwo needle\n")
    listing = shared.list_files("/job", depth=2)
    assert [(entry.path, entry.kind) for entry in listing.entries] == [
        ("deep", "folder"),
        ("deep/a.bin", "file"),
        ("notes.txt", "file"),
    ]
    found, complete = shared.search("need.e", "/job")
    assert [(line.path, line.line, line.text) for line in found] == [("/job/notes.txt", 2, "two needle")]
    assert complete
    assert shared.list_files("/job", depth=2, limit=1).complete is False
    for path in ("/job/missing", "/job", "/dev/zero"):
        with pytest.raises(OSError, match=r"."):
            shared.read_file(path)
    with pytest.raises(OSError, match="regular expression"):
        shared.search("(", "/job")


def test_changes_stay_in_the_session(workspace: Workspace) -> None:
    done = workspace.run(
        "echo x > /usr/bin/envtorch-was-here && rm -r /etc/ssl && mkdir /etc/ssl && mv /etc/init.d /d"
    )
    assert done.ok, done.output
    assert not Path("/usr/bin/envtorch-was-here").exists()
    assert Path("/etc/ssl").exists()
    with Workspace(HOST) as other:
        assert other.run("ls /usr/bin/envtorch-was-here").exit_code != 0


def test_a_closed_workspace_says_so() -> None:
    require_host_root()
    workspace = Workspace(HOST)
    workspace.close()
    workspace.close()
    with pytest.raises(SessionLost, match="closed"):
        workspace.run("true")


def needs(workspace: Workspace, program: str) -> None:
    if workspace.run(f"command -v {program}").exit_code:
        pytest.skip(f"this machine has no {program} to try")


def test_dpkg_installs_a_package_that_makes_a_user(workspace: Workspace) -> None:
    needs(workspace, "dpkg-deb")
    needs(workspace, "useradd")
    workspace.write_file(
        "/tmp/p/DEBIAN/control",
        b"Package: tried\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: tried\n",
    )
    workspace.write_file("/tmp/p/usr/bin/tried", b"#!/bin/sh\necho installed\n")
    workspace.write_file(
        "/tmp/p/DEBIAN/postinst", b"#!/bin/sh\nset -e\nuseradd -r tried\nchown tried /usr/bin/tried\n"
    )
    done = workspace.run(
        "chmod 755 /tmp/p/usr/bin/tried /tmp/p/DEBIAN/postinst && dpkg-deb -b /tmp/p /tmp/p.deb && "
        "apt-get install -y --no-download /tmp/p.deb || dpkg -i /tmp/p.deb; tried; stat -c %U /usr/bin/tried"
    )
    assert done.output.splitlines()[-2:] == ["installed", "tried"], done.output


def test_pip_installs_a_local_wheel(workspace: Workspace) -> None:
    if workspace.run("python3 -m pip --version").exit_code:
        pytest.skip("the python3 of this machine has no pip to try")
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tried_module.py", "ANSWER = 42\n")
        archive.writestr("tried-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tried\nVersion: 1\n")
        archive.writestr(
            "tried-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tried-1.dist-info/RECORD", "")
    workspace.write_file("/tmp/tried-1-py3-none-any.whl", wheel.getvalue())
    done = workspace.run(
        "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-index /tmp/tried-1-py3-none-any.whl && "
        "python3 -c 'import tried_module; print(tried_module.ANSWER)'"
    )
    assert done.output.splitlines()[-1] == "42", done.output


def test_git_and_a_compiler_work(workspace: Workspace) -> None:
    needs(workspace, "git")
    needs(workspace, "gcc")
    done = workspace.run(
        "cd /tmp && git init -q r && cd r && echo 'int main(){return 7;}' > a.c && git add a.c && "
        "git -c user.name=a -c user.email=a@b commit -qm first && git clone -q . ../s && gcc -o a ../s/a.c; ./a; echo $?"
    )
    assert done.output.splitlines()[-1] == "7", done.output


def test_a_server_on_the_loopback_is_reached_inside_and_nowhere_else(workspace: Workspace) -> None:
    needs(workspace, "python3")
    script = (
        "import socket, threading\n"
        "s = socket.create_server(('127.0.0.1', 8080))\n"
        "threading.Thread(target=lambda: s.accept()[0].sendall(b'served'), daemon=True).start()\n"
        "print(socket.create_connection(('127.0.0.1', 8080)).recv(10))\n"
        "try: socket.create_connection(('10.0.0.1', 80), timeout=2)\n"
        "except OSError as error: print(error.errno)\n"
    )
    workspace.write_file("/tmp/a.py", script.encode())
    assert workspace.run("python3 /tmp/a.py").output == "b'served'\n101\n"


def test_su_leaves_root_and_comes_back(shared: Workspace) -> None:
    needs(shared, "su")
    assert shared.run("su nobody -s /bin/sh -c 'id -un'; id -un").output == "nobody\nroot\n"
