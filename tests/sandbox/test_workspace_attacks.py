"""What an agent that is root on its own root file system tries, and does not get."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envtorch.errors import OutOfResources
from envtorch.sandbox import CommandOutcome, Workspace
from envtorch.sandbox.monitor import memory_limit
from envtorch.sandbox.zygotes import owned_resources
from tests.sandbox.roots import HOST, MEGABYTE, require_host_root
from tests.sandbox.workspace_attacks import (
    OPERATION,
    PYTHON,
    SHELL,
    SIGNALS_TO_THE_INIT,
    operation_under_way,
)
from tests.support import eventually

SMALL = dataclasses.replace(HOST, memory_bytes=16 * MEGABYTE, disk_bytes=MEGABYTE, open_files=4096)
SOCKETS = {
    "unix": """
import socket
pairs = []
while True:
    one, other = socket.socketpair()
    one.setblocking(False)
    pairs.append((one, other))
    try:
        while True:
            one.send(bytes(60000))
    except BlockingIOError:
        pass
""",
    "netlink": """
import socket, struct, time
wrong = struct.pack("IHHII", 16 + 100000, 999, 5, 1, 0) + bytes(100000)  # the answer repeats it
keep = []
for _ in range(1000):
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    keep.append(one)
    for _ in range(4):
        one.send(wrong)
time.sleep(60)
""",
    "many netlink": """
import socket, time
keep = []
for _ in range(2000):  # nothing waits in them, and their list takes long to read
    keep.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    keep[-1].bind((0, 0))
time.sleep(60)
""",
}
FILL_DATAGRAMS = """
import socket
keep, held = [], 0
for _ in range(1000):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("127.0.0.1", 0))
    one.setblocking(False)
    keep.append(one)
    for _ in range(4):
        try:
            one.sendto(bytes(60000), one.getsockname())
        except OSError:
            pass
for one in keep:
    try:
        while True:
            held += len(one.recv(1 << 17))
    except BlockingIOError:
        pass
print(held)
"""


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    require_host_root()
    with Workspace(HOST) as made:
        yield made


@pytest.mark.parametrize("attack", PYTHON)
def test_a_call_that_escapes_are_made_of_is_refused(workspace: Workspace, attack: str) -> None:
    if workspace.run("command -v python3").exit_code:
        pytest.skip("this machine has no python3 to try")
    done = workspace.execute(["python3", "-c", PYTHON[attack]])
    assert done.exit_status == 0, done.stderr


@pytest.mark.parametrize("attack", SHELL)
def test_root_inside_is_not_root_outside(workspace: Workspace, attack: str) -> None:
    assert workspace.run(SHELL[attack]).exit_code != 0


@pytest.mark.parametrize("user", [None, "nobody"])
@pytest.mark.parametrize("attack", OPERATION)
def test_a_file_operation_is_closed_to_the_agent(attack: str, user: str | None) -> None:
    """Its memory is a copy of the init's, and its descriptors carry the answer."""
    require_host_root()
    with Workspace(HOST, user=user) as workspace, operation_under_way(workspace) as process:
        assert workspace.run(f"kill -0 {process}").exit_code == 0
        assert workspace.run(f"operation={process}; {OPERATION[attack]}").exit_code != 0


def test_the_init_holds_no_file_of_this_machine(workspace: Workspace) -> None:
    """Programs and operations are its children, and begin with what it holds."""
    process = workspace._channel.process()
    held = {name: os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")}
    files = {name: target for name, target in held.items() if target.startswith("/")}
    assert files == dict.fromkeys(("0", "1", "2"), "/dev/null")


def require_python3(workspace: Workspace) -> None:
    """Skip a test whose attack is a program of Python's, where the root file system has no Python."""
    if workspace.run("command -v python3").exit_code:
        pytest.skip("the root of this machine has no python3, in which the attack is written")


KILL_LOOP = b"""
import os
while True:
    try:
        os.kill(-1, 9)
    except ProcessLookupError:
        pass
"""


def test_an_agent_that_kills_every_process_gets_errors_and_keeps_its_session() -> None:
    require_host_root()
    with Workspace(HOST) as workspace:
        require_python3(workspace)
        workspace.write_file("/tmp/kill.py", KILL_LOOP)
        workspace.run("setsid python3 -I /tmp/kill.py &")

        def is_ended() -> bool:
            try:
                assert workspace.read_file("/tmp/kill.py") == KILL_LOOP
            except OSError as error:
                assert "ended by signal 9" in str(error)
                return True
            return False

        eventually(is_ended, "an operation is killed")
        workspace.end_processes()
        assert workspace.run("echo after").output == "after\n"


def test_the_init_cannot_be_killed(workspace: Workspace) -> None:
    workspace.run(SIGNALS_TO_THE_INIT)
    assert workspace.run("echo alive").output == "alive\n"


def test_no_secret_of_this_machine_is_seen() -> None:
    """Home directories, data, what only root may read: not one file of them."""
    require_host_root()
    with Workspace(HOST) as workspace:
        seen = workspace.run(
            "find /etc -name 'shadow*'; ls -A /root /home /tmp /srv /opt | grep -v :; ls /"
        ).output.split()
        unreadable = workspace.run("find /etc -type f ! -perm -o=r ! -perm /111 | head").output
    assert set(seen) <= {
        *[
            "bin",
            "dev",
            "etc",
            "home",
            "lib",
            "lib32",
            "lib64",
            "libx32",
            "mnt",
            "opt",
            "proc",
            "root",
            "run",
            "sbin",
            "srv",
            "sys",
            "tmp",
            "usr",
            "var",
        ]
    }
    assert unreadable == ""


def test_no_process_of_this_machine_is_seen(workspace: Workspace) -> None:
    seen = workspace.run("ls /proc | grep -c '^[0-9]'").output
    assert int(seen) < 8
    assert workspace.run(f"kill -0 {os.getpid()}").exit_code != 0 or os.getpid() < 100


def test_set_user_id_programs_gain_nothing_outside(workspace: Workspace) -> None:
    workspace.run("cp /bin/bash /root/suid; chmod 4755 /root/suid")
    assert workspace.run("su nobody -s /bin/sh -c 'id -u'").output == "65534\n"
    assert workspace.run("stat -c %u:%a /root/suid").output == "0:4755\n"
    assert not list(Path("/root").glob("suid"))


def test_the_disk_is_limited_in_bytes_and_in_files() -> None:
    require_host_root()
    with Workspace(HOST) as workspace:
        full = workspace.run(
            "for i in 1 2 3 4; do head -c 30000000 /dev/zero > /root/f$i; done; du -sm /root | cut -f1"
        )
        assert "No space left" in full.output
        assert int(full.output.split()[-1]) <= HOST.disk_bytes // MEGABYTE
        workspace.run("rm /root/f*")
        files = workspace.run("cd /root; seq 30000 | xargs touch; ls | wc -l")
        assert int(files.output.split()[-1]) <= HOST.disk_bytes // 4096


def test_a_fork_bomb_ends_at_the_limit_of_processes() -> None:
    require_host_root()
    with Workspace(HOST) as workspace:
        bomb = "for i in $(seq 500); do sleep 30 & done; wait"
        answer = workspace.run(bomb, timeout_s=2)
        assert answer.outcome in (CommandOutcome.OUT_OF_PROCESSES, CommandOutcome.TIMED_OUT)
        assert len(workspace.processes()) <= HOST.processes + 4
        workspace.end_processes()
        assert workspace.run("echo after").output == "after\n"


FORK_LOOP = b"""
import os, time
if os.fork():
    os._exit(0)
os.setsid()
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        time.sleep(0.0005)
"""


def test_with_all_processes_used_up_files_and_shells_are_refused_and_nothing_leaks() -> None:
    require_host_root()
    with Workspace(dataclasses.replace(HOST, processes=8)) as workspace:
        require_python3(workspace)
        if workspace._group is None or "pids" not in workspace._group.folders:
            pytest.skip("no control group counts processes here")
        workspace.write_file("/tmp/loop.py", FORK_LOOP)
        workspace.run("python3 -I /tmp/loop.py; exit 3")
        folder = workspace._group.folders["pids"]
        most = (folder / "pids.max").read_text()
        process = workspace._channel.process()
        held = os.listdir(f"/proc/{process}/fd")
        ours = set(os.listdir("/proc/self/fd"))
        for _ in range(3):
            eventually(lambda: (folder / "pids.current").read_text() == most, "the limit is reached")
            with pytest.raises(OutOfResources, match=r"operation could not be started: .* its processes"):
                workspace.read_file("/tmp/loop.py")
            with pytest.raises(OutOfResources, match=r"operation could not be started: .* its processes"):
                workspace.write_file("/tmp/large", bytes(1 << 20))
            with pytest.raises(OutOfResources, match=r"shell could not be started: .* its processes"):
                workspace.run("true")
        assert os.listdir(f"/proc/{process}/fd") == held
        eventually(lambda: set(os.listdir("/proc/self/fd")) <= ours, "all pipes are closed")
        workspace.end_processes()
        assert workspace.run("echo after").output == "after\n"


TERMINAL_LOOP = b"""
import os, time
held = []
while True:
    try:
        held.append(os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        time.sleep(0.0005)
"""


def test_with_all_terminals_used_up_a_shell_is_refused() -> None:
    require_host_root()
    with Workspace(HOST) as workspace:
        require_python3(workspace)
        workspace.write_file("/tmp/loop.py", TERMINAL_LOOP)
        workspace.run("setsid python3 -I /tmp/loop.py &")

        def is_refused() -> bool:
            try:
                workspace.run("exit 3")
            except OutOfResources as error:
                assert "its terminals" in str(error)
                return True
            return False

        eventually(is_refused, "no terminal is left")
        workspace.end_processes()
        assert workspace.run("echo after").output == "after\n"


def test_memory_is_limited() -> None:
    require_host_root()
    with Workspace(HOST) as workspace:
        require_python3(workspace)
        answer = workspace.run("python3 -c 'x = bytearray(1 << 30)'")
        assert answer.exit_code != 0
        assert workspace.run("echo after").output == "after\n"


@pytest.mark.parametrize("sockets", SOCKETS)
def test_memory_in_sockets_ends_whoever_holds_it_and_not_the_session(sockets: str) -> None:
    require_host_root()
    with Workspace(SMALL) as workspace:
        require_python3(workspace)
        if sockets == "unix" and "memory" in owned_resources().groups.unavailable:
            pytest.skip("no control group counts the memory in sockets here")
        workspace.write_file("/tmp/fill.py", SOCKETS[sockets].encode())
        answer = workspace.run("python3 /tmp/fill.py", timeout_s=60)
        assert answer.outcome is CommandOutcome.OUT_OF_MEMORY, answer
        assert workspace.run("echo after").output == "after\n"


def test_memory_in_datagrams_is_limited() -> None:
    """What is sent beyond the limit is lost, as on any network."""
    require_host_root()
    with Workspace(SMALL) as workspace:
        require_python3(workspace)
        if "memory" in owned_resources().groups.unavailable:
            pytest.skip("no control group counts the memory in sockets here")
        workspace.write_file("/tmp/send.py", FILL_DATAGRAMS.encode())
        answer = workspace.run("python3 /tmp/send.py", timeout_s=60)
        held = int(answer.output) if answer.exit_code == 0 else 0
        assert held <= memory_limit(SMALL) // (4 if owned_resources().groups.version == 1 else 1)
        assert workspace.run("echo after").output == "after\n"


def test_programs_list_interfaces_and_change_their_own_processes(workspace: Workspace) -> None:
    listed = workspace.execute(["python3", "-c", "import socket; print(socket.if_nameindex()[0][1])"])
    assert listed.stdout == b"lo\n", listed.stderr
    own = "import os, resource; resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (64, 64))"
    threads = "import os, threading; os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(0))"
    for code in (own, threads, "import os; os.setpriority(os.PRIO_PROCESS, os.getpid(), 1)"):
        done = workspace.execute(["python3", "-c", code])
        assert done.exit_status == 0, done.stderr


@pytest.mark.parametrize("trick", ["rm /dev/ptmx", "ln -sf /dev/null /dev/ptmx", "rm -r /dev/fd /dev/null"])
def test_a_shell_starts_whatever_is_in_dev(trick: str) -> None:
    require_host_root()
    with Workspace(HOST) as workspace:
        workspace.run(f"{trick}; exit 3")
        assert workspace.run("echo after").output == "after\n"


def test_a_name_that_cannot_be_is_refused_as_a_file_is(workspace: Workspace) -> None:
    with pytest.raises(OSError, match="null"):
        workspace.read_file("a\0b")
    with pytest.raises(OSError, match="null"):
        workspace.write_file("a\0b", b"")
