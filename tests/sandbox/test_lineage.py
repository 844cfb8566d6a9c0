"""When a sandbox is closed or swept nothing of the agent's runs on, wherever its processes have gone."""

import os
import re
import secrets
import signal
import threading
from collections.abc import Iterator

import pytest

from envtorch.sandbox import Outcome, Policy, Sandbox
from tests.support import eventually

from .attack_runner import survivors
from .elsewhere import NOBODY, run_module

ROUNDS = 100
OLD_LANDLOCK = 3
"""An ABI that does not confine signals."""

KEEP_THE_DOORS = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
tried = []
def stay():
    libc.prctl(15, {mark!r}.encode(), 0, 0, 0)
    if {hops} and os.fork(): os._exit(0)
    while True: time.sleep(1)
def enter():
    found = {{}}
    for number in os.listdir('/proc/self/fd'):
        try: kind, _, rest = os.readlink('/proc/self/fd/' + number).partition(':[')
        except OSError: continue
        if rest and kind not in found: found[kind] = int(number)
    if tried or 'pid' not in found: return
    tried.append(found)
    if os.fork(): return
    for kind in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts'):
        if libc.setns(found[kind], 0): os._exit(1)
    if os.fork() == 0: stay()
    os._exit(0)
os.register_at_fork(after_in_child=enter)
"""
"""Starts a process in the namespaces of the next fork, on the way of that fork through them. With `hops`
its parent, too, is in those namespaces, and has ended."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("user", "options"),
    [
        (0, ["--container"]),
        (NOBODY, ["--container"]),
        (NOBODY, ["--container", "--landlock-abi", str(OLD_LANDLOCK)]),
        (0, []),
        (NOBODY, []),
    ],
    ids=["root, container", "user, container", "user, container, old kernel", "root, host", "user, host"],
)
def test_nothing_runs_after_close_in_a_hundred_hops(user: int, options: list[str]) -> None:
    done = run_module(
        "tests.sandbox.lineage_checks", *options, "--rounds", str(ROUNDS), user=user, timeout_s=280
    )
    found = re.search(r"hopped in (\d+) of (\d+), left (\d+)", done.stdout)
    assert found, done.stderr
    hopped, rounds, left = map(int, found.groups())
    assert (rounds, left) == (ROUNDS, 0)
    assert hopped > ROUNDS // 2, "they hop while the sandbox is open"


@pytest.fixture
def mark() -> Iterator[str]:
    made = f"kept-{secrets.token_hex(4)}"
    yield made
    assert survivors(made) == []


@pytest.mark.parametrize("hops", [False, True])
@pytest.mark.parametrize("way", ["timeout", "close"])
def test_a_process_in_the_namespaces_of_a_fork_ends_with_its_own_sandbox(
    policy: Policy, mark: str, way: str, hops: bool
) -> None:
    with Sandbox(policy) as sandbox:
        if not sandbox.report().protects("fork"):
            pytest.skip(f"sandboxes cannot be forked here: {sandbox.report().protections['fork']}")
        assert sandbox.run(KEEP_THE_DOORS.format(mark=mark, hops=hops)).ok
        (fork,) = sandbox.fork(1)
        with fork:
            eventually(lambda: survivors(mark) != [], "the process has entered the fork's namespaces")
            fork.run("kept = 'mine'")
            if way == "timeout":
                assert sandbox.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
            else:
                sandbox.close()
            assert survivors(mark) == []
            assert fork.run("kept").json() == "mine", "the fork goes on"
            assert fork.run("import subprocess; subprocess.run(['true']).returncode").json() == 0


def test_a_fork_runs_nothing_before_its_parents_init_tells_it_apart(forkable: Sandbox, mark: str) -> None:
    forkable.fork(1)[0].close()
    init = forkable._core.handle.host_process()
    assert init is not None
    os.kill(init, signal.SIGSTOP)
    going_on = threading.Timer(1.0, os.kill, (init, signal.SIGCONT))
    going_on.start()
    try:
        (fork,) = forkable.fork(1)
        with fork:
            fork.run(start_process(mark))
            eventually(lambda: survivors(mark) != [], "the fork's process runs")
            going_on.join()
            assert forkable.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
            assert len(survivors(mark)) == 1
    finally:
        going_on.join()


def start_process(mark: str) -> str:
    """Code that starts a process of that name, which stays."""
    return (
        "import ctypes, os, time\nif os.fork() == 0:\n"
        f"    ctypes.CDLL(None).prctl(15, {mark!r}.encode(), 0, 0, 0)\n    time.sleep(1000)"
    )


def test_what_a_fork_started_is_not_swept_with_its_parent(forkable: Sandbox, mark: str) -> None:
    (fork,) = forkable.fork(1)
    with fork:
        fork.run(start_process(mark))
        eventually(lambda: survivors(mark) != [], "the fork's process runs")
        assert forkable.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
        assert len(survivors(mark)) == 1
        assert fork.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
        assert survivors(mark) == []
