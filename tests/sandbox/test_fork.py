"""Forks: exact copies at a run boundary, then worlds of their own."""

import threading
import time

import pytest

from envtorch.errors import OutOfResources, SessionLost
from envtorch.sandbox import Outcome, Sandbox
from envtorch.sandbox.cgroups import Group
from tests.support import PATIENCE_S

STATE = """
import hashlib, os, pickle, random
def fingerprint():
    files = {}
    for top, folders, names in sorted(os.walk('.')):
        for name in sorted(names):
            path = os.path.join(top, name)
            files[path] = (open(path, 'rb').read(), os.stat(path).st_mode)
    return hashlib.sha256(pickle.dumps((data, random.getstate(), sorted(files.items())))).hexdigest()
random.seed(7)
data = {i: str(i) * 5 for i in range(20000)}
os.makedirs('folder/deeper')
open('folder/deeper/file.bin', 'wb').write(os.urandom(100000))
open('script.sh', 'w').write('#!/bin/sh\\necho hello\\n')
os.chmod('script.sh', 0o755)
os.symlink('folder/deeper/file.bin', 'link')
os.link('script.sh', 'twin.sh')
"""


def test_forks_are_identical_and_then_diverge(forkable: Sandbox) -> None:
    forkable.run(STATE)
    before = forkable.run("fingerprint()").json()
    forks = forkable.fork(3)
    try:
        assert {fork.run("fingerprint()").json() for fork in forks} == {before}
        for number, fork in enumerate(forks):
            fork.run(f"data[0] = {number}; open('own.txt', 'w').write('{number}')")
        prints = {fork.run("fingerprint()").json() for fork in forks}
        assert len(prints) == 3
        assert before not in prints
        assert forkable.run("fingerprint()").json() == before
        assert [fork.read_file("own.txt") for fork in forks] == [b"0", b"1", b"2"]
    finally:
        for fork in forks:
            fork.close()


def test_the_files_of_every_fork_count_in_its_own_group(
    forkable: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forkable._core.group is None:
        pytest.skip(f"no control groups here: {forkable.report().protections['limits']}")
    add = Group.add

    def add_late(group: Group, process: int) -> None:
        time.sleep(0.5)  # as on a busy machine
        add(group, process)

    monkeypatch.setattr(Group, "add", add_late)
    size = 6 * 2**20
    forkable.run(f"open('data', 'wb').write(bytes({size}))")
    forks = forkable.fork(2)
    try:
        for fork in forks:
            group = fork._core.group
            assert group is not None
            file = "memory.current" if group.version == 2 else "memory.usage_in_bytes"
            assert int((group.folders["memory"] / file).read_text()) >= size
    finally:
        for fork in forks:
            fork.close()


def test_random_numbers_go_on_alike_in_every_fork(forkable: Sandbox) -> None:
    forkable.run("import random; random.seed(3); random.random()")
    (fork,) = forkable.fork()
    with fork:
        assert fork.run("random.random()").json() == forkable.run("random.random()").json()


def test_links_and_modes_of_files_are_copied(forkable: Sandbox) -> None:
    forkable.run(STATE)
    with forkable.fork()[0] as fork:
        assert fork.exec(["./script.sh"]).stdout == b"hello\n"
        assert fork.run("os.readlink('link')").json() == "folder/deeper/file.bin"
        assert fork.run("os.stat('twin.sh').st_nlink").json() == 2


def test_sparse_files_stay_sparse(forkable: Sandbox) -> None:
    size = forkable.policy.disk_bytes - 4096
    forkable.run(
        f"for name in 'abc':\n    f = open(name, 'wb'); f.write(b'head'); f.truncate({size}); f.close()\n"
        f"f = open('b', 'r+b'); f.seek({size} - 4); f.write(b'tail'); f.close()"
    )
    with forkable.fork()[0] as fork:
        assert fork.run("import os; [os.path.getsize(n) for n in 'abc']").json() == [size] * 3
        data = fork.read_file("b")
        assert (data[:4], data[-4:], data[4:-4].strip(b"\0")) == (b"head", b"tail", b"")


def test_a_fork_of_a_fork_of_a_fork(forkable: Sandbox) -> None:
    chain = [forkable]
    forkable.run("generation = 0")
    try:
        for _ in range(6):
            chain += chain[-1].fork()
            chain[-1].run("generation += 1")
        assert [link.run("generation").json() for link in chain] == list(range(7))
    finally:
        for link in chain[1:]:
            link.close()


def test_forks_outlive_their_parent(forkable: Sandbox) -> None:
    forkable.run("x = 1; open('f', 'w').write('kept')")
    forks = forkable.fork(2)
    grandchild = forks[0].fork()[0]
    forkable.close()
    forks[0].close()
    with forks[1], grandchild:
        assert forks[1].run("x").json() == 1
        assert grandchild.run("x += 1; x").json() == 2
        assert grandchild.read_file("f") == b"kept"
        with grandchild.fork()[0] as last:
            assert last.run("x").json() == 2
    with pytest.raises(SessionLost):
        forkable.run("1")


def test_a_hundred_forks(forkable: Sandbox) -> None:
    forkable.run("x = list(range(1000))")
    forks = forkable.fork(100)
    try:
        answers = [fork.run(f"x[0] = {number}; sum(x)").json() for number, fork in enumerate(forks)]
        assert answers == [499500 + number for number in range(100)]
        assert forkable.run("sum(x)").json() == 499500
    finally:
        for fork in forks:
            fork.close()


def test_a_fork_sees_no_process_but_its_own(forkable: Sandbox) -> None:
    forkable.run("import os, subprocess; child = subprocess.Popen(['sleep', '1000'])")
    with forkable.fork()[0] as fork:
        code = "sorted(int(p) for p in os.listdir('/proc') if p.isdigit())"
        assert fork.run(code).json() == [1, fork.run("os.getpid()").json()]
        assert fork.run("os.kill(child.pid, 0)").outcome is Outcome.ERROR
        assert forkable.run("child.poll()").value is None


def test_open_files_pipes_and_shared_memory_are_no_longer_shared(forkable: Sandbox) -> None:
    forkable.run(
        "import mmap, os\n"
        "f = open('log.txt', 'w+'); f.write('start'); f.flush()\n"
        "r, w = os.pipe()\n"
        "shared = mmap.mmap(-1, 4096); shared[:5] = b'first'"
    )
    with forkable.fork()[0] as fork:
        assert fork.run("bytes(shared[:5]).decode()").json() == "first"
        fork.run("shared[:5] = b'other'; f.write(' fork'); f.flush(); os.write(w, b'x')")
        assert forkable.run("bytes(shared[:5]).decode()").json() == "first"
        assert forkable.read_file("log.txt") == b"start"
        assert fork.read_file("log.txt") == b"start fork"
        assert forkable.run("os.set_blocking(r, False); os.read(r, 1)").outcome is not Outcome.OK


def test_the_walls_stand_around_a_fork_too(forkable: Sandbox) -> None:
    with forkable.fork()[0] as fork:
        status = fork.run("open('/proc/self/status').read()").json()
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert {lines[name].strip("0") for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")} == {""}
        assert (lines["Seccomp"], lines["NoNewPrivs"]) == ("2", "1")
        assert fork.run("open('/usr/x', 'w')").outcome is Outcome.ERROR
        assert fork.run("import socket; socket.socket()").outcome is Outcome.ERROR
        assert fork.run("open('big', 'wb').write(b'x' * 2**25)").outcome is Outcome.OUT_OF_DISK
        assert fork.run("bytearray(2**34)").outcome is Outcome.OUT_OF_MEMORY
        assert fork.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
        assert fork.run("1").json() == 1


def require_control_groups(sandbox: Sandbox) -> None:
    """Groups are made by whoever may write to them; an ordinary user may not on most machines."""
    if not sandbox.report().protects("limits"):
        pytest.skip(f"no control groups here: {sandbox.report().protections['limits']}")


def test_a_fork_has_a_control_group_of_its_own(forkable: Sandbox) -> None:
    require_control_groups(forkable)
    with forkable.fork()[0] as fork:
        fork._core.settle()
        assert fork._core.group is not None
        assert forkable._core.group is not None
        for core in (fork._core, forkable._core):
            assert core.group is not None
            place = core.group.folders["pids"] / "cgroup.procs"
            end = time.monotonic() + 20
            # Init and interpreter; what the fork passed through may be on its way out, which nobody is told.
            while len(members := place.read_text().split()) > 2 and time.monotonic() < end:
                time.sleep(0.01)
            assert len(members) == 2, members


def test_files_that_a_fork_brings_along_count_as_its_own(forkable: Sandbox) -> None:
    require_control_groups(forkable)
    forkable.fork()[0].close()  # from now on walls wait for the next
    forkable.write_file("large", b"x" * 4_000_000)
    with forkable.fork()[0] as fork:
        fork._core.settle()
        assert fork._core.group is not None
        folder = fork._core.group.folders["memory"]
        name = "memory.current" if (folder / "memory.current").exists() else "memory.usage_in_bytes"
        assert int((folder / name).read_text()) > 4_000_000


def test_a_fork_keeps_exposed_functions(forkable: Sandbox) -> None:
    forkable.expose("double", lambda x: 2 * x)
    with forkable.fork()[0] as fork:
        assert fork.run("double(4)").json() == 8


def test_a_fork_that_dies_harms_nobody(forkable: Sandbox) -> None:
    first, second = forkable.fork(2)
    with first, second:
        assert first.run("import os; os._exit(9)").exit_status == 9
        assert second.run("1").json() == 1
        assert forkable.run("1").json() == 1


def test_forking_while_another_sandbox_is_under_load(forkable: Sandbox) -> None:
    with Sandbox(forkable.policy) as busy:
        started = threading.Event()
        busy.expose("started", started.set)
        results = []
        code = "started()\nimport time\nend = time.time() + 1\nwhile time.time() < end: pass\n'finished'"
        loader = threading.Thread(target=lambda: results.append(busy.run(code)))
        loader.start()
        assert started.wait(PATIENCE_S)
        for fork in forkable.fork(5):
            with fork:
                assert fork.run("1").json() == 1
        loader.join()
        assert results[0].json() == "finished"


def test_a_chain_too_deep_for_the_kernel_is_a_typed_error(forkable: Sandbox) -> None:
    chain = [forkable]
    try:
        with pytest.raises(OutOfResources, match="namespaces"):
            _fork_on(chain, 40)
        assert chain[-1].run("1").json() == 1
        assert len(chain) > 20
    finally:
        for link in chain[1:]:
            link.close()


def _fork_on(chain: list[Sandbox], times: int) -> None:
    for _ in range(times):
        chain += chain[-1].fork()


@pytest.mark.parametrize("count", [0, -1])
def test_less_than_one_fork_is_refused(forkable: Sandbox, count: int) -> None:
    with pytest.raises(ValueError, match="count"):
        forkable.fork(count)


def test_a_second_fork_has_what_a_signal_handler_did_since_the_first(forkable: Sandbox) -> None:
    """Forks in a row look around once, but not when the agent's code may run between them."""
    code = """
import random, signal
def draw(*_):
    random.random()
    open('drawn', 'w').close()
random.seed(1)
signal.signal(signal.SIGALRM, draw)
signal.setitimer(signal.ITIMER_REAL, 0.5)
"""
    assert forkable.run(code).ok
    forkable.fork()[0].close()
    end = time.monotonic() + 20
    while not [found for found in forkable.list_files(".") if found.path == "drawn"]:
        assert time.monotonic() < end
        time.sleep(0.01)  # the timer is the agent's; nobody tells us
    with forkable.fork()[0] as second:
        assert second.run("random.random()").json() == forkable.run("random.random()").json()


def test_the_agents_code_hears_nothing_of_a_fork(forkable: Sandbox) -> None:
    assert forkable.run(
        "import os, signal; heard = []; signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))"
    ).ok
    with forkable.fork()[0] as fork:
        assert fork.run("heard").json() == []
        assert forkable.run("heard").json() == []
        assert forkable.run("os.waitpid(-1, os.WNOHANG)").exception is not None, "there is no child"


def test_a_parent_and_its_fork_can_look_at_themselves(forkable: Sandbox) -> None:
    look = "len(open('/proc/self/smaps').read()) > 0 and len(open('/proc/self/environ').read()) > 0"
    with forkable.fork()[0] as fork:
        assert forkable.run(look).json() is True
        assert fork.run(look).json() is True


THREAD = """
import threading
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()
"""


def test_threads_do_not_survive_a_fork_and_random_goes_on_alike(forkable: Sandbox) -> None:
    forkable.run(THREAD + "import random; random.seed(5); data = list(range(1000))")
    forks = forkable.fork(3)
    try:
        for fork in forks:
            assert fork.run("threading.active_count(), sum(data), random.random()").ok
            assert fork.run("threading.active_count()").json() == 1, "threads do not survive a fork"
        drawn = {fork.run("random.random()").value for fork in forks}
        assert len(drawn) == 1
    finally:
        for fork in forks:
            fork.close()
    assert forkable.run("threading.active_count()").json() == 2


BUSY = """
import os, threading
def scribble():
    while True:
        with open('busy.txt', 'w') as file:
            file.write('x' * 5000)
for _ in range(3):
    threading.Thread(target=scribble, daemon=True).start()
"""


def test_files_that_threads_open_and_truncate_meanwhile_do_not_stop_a_fork(forkable: Sandbox) -> None:
    forkable.run(BUSY)
    for _ in range(15):
        with forkable.fork()[0] as fork:
            assert fork.run("1 + 1").json() == 2
    assert forkable.run("2 + 2").json() == 4
