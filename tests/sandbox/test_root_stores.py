"""The process that holds the layers: replies that come late, and requests that take long."""

import contextlib
import io
import os
import secrets
import signal
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from envtorch.errors import EnvironmentFailed, OutOfResources, SessionLost
from envtorch.sandbox import Workspace
from envtorch.sandbox.root_stores import RootStore, StoreReply, root_store_for
from envtorch.sandbox.workspace_channel import WorkspaceChannel
from tests.sandbox.roots import HOST, require_host_root
from tests.support import PATIENCE_S, eventually


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    require_host_root()
    with Workspace(HOST) as made:
        yield made


@contextlib.contextmanager
def standing_still(store: RootStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the process for a while in which requests are given up soon."""
    os.kill(store.process.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(store, "timeout_s", 0.05)
            yield
    finally:
        os.kill(store.process.pid, signal.SIGCONT)


def test_a_reply_that_comes_late_is_never_taken_for_another(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = workspace.store
    with Workspace(HOST) as other:
        asked = {one._name: {"op": "layers", "session": one._name} for one in (workspace, other)}
        with (
            standing_still(store, monkeypatch),
            pytest.raises(EnvironmentFailed, match="has not answered 'layers'"),
        ):
            store.ask(asked[workspace._name])
        for name in (other._name, workspace._name, other._name):
            reply, _ = store.ask(asked[name])
            assert reply.layers[0] == f"{name}/upper0"


def test_a_session_that_was_given_up_while_the_store_stood_still_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_host_root()
    store = root_store_for(str(HOST.root))
    before = session_mounts(store)
    with (
        standing_still(store, monkeypatch),
        pytest.raises(EnvironmentFailed, match="has not answered 'open'"),
    ):
        Workspace(HOST)
    with Workspace(HOST) as later:
        assert later.run("echo fine").output == "fine\n"
    eventually(lambda: session_mounts(store) == before, "its disk is gone")


def session_mounts(store: RootStore) -> int:
    return Path(f"/proc/{store.process.pid}/mountinfo").read_text().count(" /tmp/session-")


def test_a_late_reply_of_an_init_is_never_taken_for_another() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        channel = WorkspaceChannel(ours, reply_s=0.05)
        with pytest.raises(EnvironmentFailed, match="did not answer"):
            channel.ask({"op": "network"})
        theirs.send(b'{"event": "failed", "message": "of the first", "id": 1}')
        theirs.send(b'{"event": "done", "pid": 2, "id": 2}')
        reply, _ = channel.ask({"op": "processes"})
        assert reply.pid == 2


def test_a_reenter_that_is_not_answered_ends_the_session(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been done or not: what is changed from now on could be missing from later copies."""
    store, channel = workspace.store, workspace._channel
    init = channel.process()
    assert init is not None
    ask = store.ask

    def then_stop(request: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[StoreReply, list[int]]:
        answer = ask(request, descriptors)
        if request["op"] == "stack":
            os.kill(init, signal.SIGSTOP)
            monkeypatch.setattr(channel, "_reply_s", 0.05)
        return answer

    monkeypatch.setattr(store, "ask", then_stop)
    with pytest.raises(SessionLost, match="whether 'reenter' was done"):
        workspace.fork()
    assert not workspace.alive
    with pytest.raises(SessionLost):
        workspace.run("true")
    monkeypatch.undo()
    assert workspace.finish()


def test_a_session_that_cannot_enter_a_network_says_so_and_ends(workspace: Workspace) -> None:
    """Its first process is a child of the store, and must not serve the store's owner beside it."""
    store = workspace.store
    children = children_of(store)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    settings = {
        "hostname": "sandbox",
        "names_host": True,
        "shared_memory_bytes": 1 << 20,
        "own_network": False,
        "rlimits": {},
    }
    request = {
        "op": "open",
        "session": "session-without-network",
        "layers": store.image,
        "base": len(store.image),
        "disk_bytes": 1 << 20,
        "settings": settings,
    }
    channel = WorkspaceChannel(ours)
    with theirs, open("/dev/null", "rb") as no_network:
        _, watches = store.ask(request, [theirs.fileno(), no_network.fileno()])
    for watch in watches:
        os.close(watch)
    try:
        with pytest.raises(EnvironmentFailed, match="setns"):
            channel.await_ready()
        eventually(lambda: children_of(store) <= children, "the end of its first process")
    finally:
        channel.close()
        store.ask({"op": "close", "session": "session-without-network"})


MARK = secrets.token_bytes(32)


def test_nothing_of_an_archive_stays_in_the_memory_of_the_store(workspace: Workspace) -> None:
    """Every session's first process is forked from it: archives are the hidden tests of tasks."""
    store = workspace.store
    archive = os.memfd_create("archive")
    try:
        with os.fdopen(os.dup(archive), "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            member = tarfile.TarInfo("tests/check.py")
            member.size = 1000 * len(MARK)
            tar.addfile(member, io.BytesIO(1000 * MARK))
        os.lseek(archive, 0, os.SEEK_SET)
        request = {"op": "layer", "layer": "marked", "disk_bytes": 1 << 20, "opaque": ["/tests"]}
        reply, _ = store.ask(request, [archive])
    finally:
        os.close(archive)
    try:
        assert count_in_memory(store.process.pid, MARK) == 0
        with Workspace(HOST, layers=[*reply.layers, *store.image]) as other:
            assert other.read_file("/tests/check.py") == 1000 * MARK
    finally:
        store.ask({"op": "close", "session": "marked"})


def count_in_memory(process: int, mark: bytes) -> int:
    """How often a process has some bytes in memory that it can write to."""
    found = 0
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            addresses, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(word, 16) for word in addresses.split("-"))
                memory.seek(start)
                found += memory.read(end - start).count(mark)
    return found


def test_an_archive_that_cannot_be_read_is_a_failure_with_a_reason(workspace: Workspace) -> None:
    store = workspace.store
    archive = os.memfd_create("archive")
    try:
        os.write(archive, b"no archive" * 100)
        os.lseek(archive, 0, os.SEEK_SET)
        request = {"op": "layer", "layer": "unreadable", "disk_bytes": 1 << 20, "opaque": []}
        with pytest.raises(EnvironmentFailed, match="could not be opened"):
            store.ask(request, [archive])
    finally:
        os.close(archive)
        store.ask({"op": "close", "session": "unreadable"})


def test_a_request_to_an_init_that_reads_none_is_given_up_in_time_and_no_fault() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        channel = WorkspaceChannel(ours, reply_s=0.05)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(1000))
        channel.tell({"op": "cull"})
        with pytest.raises(EnvironmentFailed, match="did not answer"):
            channel.ask({"op": "processes"})


def test_a_request_on_a_closed_channel_says_that_the_session_has_ended() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        channel = WorkspaceChannel(ours)
        channel.close()
        for request in (channel.tell, channel.ask):
            with pytest.raises(SessionLost, match="it was closed"):
                request({"op": "cull"})


FILES = 15_000
MANY = f"""python3 -c "
import os
for number in range({FILES}):
    if number % 1000 == 0:
        os.makedirs(f'/root/many/{{number // 1000}}')
    os.close(os.open(f'/root/many/{{number // 1000}}/{{number}}', os.O_CREAT))
" """


def test_neighbours_go_on_while_the_many_files_of_one_session_are_copied(workspace: Workspace) -> None:
    made = workspace.run(f"{MANY}; find /root/many -type f | wc -l", timeout_s=PATIENCE_S)
    assert made.output.strip() == str(FILES)
    copied: list[tuple[list[str], str]] = []
    with Workspace(HOST) as neighbour:
        copying, process = begin_copy(workspace, lambda: copied.append(workspace.copy_layers()))
        os.kill(process, signal.SIGSTOP)  # it takes as long as this test does
        try:
            assert neighbour.run("echo fine").output == "fine\n"
            (fork,) = neighbour.fork()
            with fork:
                assert fork.run("echo fine").output == "fine\n"
            assert copying.is_alive()
        finally:
            os.kill(process, signal.SIGCONT)
        copying.join(PATIENCE_S)
    ((layers, name),) = copied
    with Workspace(HOST, layers=layers) as other:
        assert other.run("find /root/many -type f | wc -l").output.strip() == str(FILES)
    workspace.store.ask({"op": "close", "session": name})


def test_a_copy_whose_process_is_ended_fails_and_the_store_lives_on(workspace: Workspace) -> None:
    workspace.run(MANY, timeout_s=PATIENCE_S)
    failures: list[str] = []

    def copy() -> None:
        try:
            workspace.copy_layers()
        except EnvironmentFailed as error:
            failures.append(str(error))

    copying, process = begin_copy(workspace, copy)
    os.kill(process, signal.SIGKILL)
    copying.join(PATIENCE_S)
    (failure,) = failures
    assert "the process that merged layers was ended" in failure
    mounts = Path(f"/proc/{workspace.store.process.pid}/mountinfo").read_text()
    assert " /tmp/copy-" not in mounts
    assert workspace.run("ls /root/many | wc -l").output.strip() == str(FILES // 1000)


def begin_copy(workspace: Workspace, copy: Callable[[], None]) -> tuple[threading.Thread, int]:
    """A thread that copies, and the process that does it."""
    before = children_of(workspace.store)
    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    eventually(lambda: children_of(workspace.store) > before, "the copy has begun")
    (process,) = children_of(workspace.store) - before
    return copying, process


def children_of(store: RootStore) -> set[int]:
    process = store.process.pid
    return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def test_a_session_whose_layers_cannot_be_merged_goes_on_as_it_was(workspace: Workspace) -> None:
    """Its 65th layer is merged with those below; the disk has no room for another copy of what is there."""
    size = HOST.disk_bytes * 6 // 10
    workspace.run(f"head -c {size} /dev/zero > /root/large", timeout_s=PATIENCE_S)
    for _ in range(64):
        workspace.stack()
    for _ in range(2):
        assert workspace.run("stat -c %s /root/large; echo on > /root/small").output == f"{size}\n"
        with pytest.raises(OutOfResources):
            workspace.stack()
    layers = workspace.finish()
    with Workspace(HOST, layers=layers) as other:
        assert other.run("stat -c %s /root/large; cat /root/small").output == f"{size}\non\n"
