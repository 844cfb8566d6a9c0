"""What container grade promises beside containment, checked in this process; prints `ok` at the end.

python -m tests.sandbox.container_checks
"""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from envtorch.errors import ConfigurationError
from envtorch.sandbox import AsyncSandbox, Outcome, Policy, Sandbox, core
from envtorch.sandbox.zygotes import NOBODY

from . import writers
from .attack_runner import survivors

OWNER = """
import os, sys, time
from envtorch.sandbox import Policy, Sandbox, zygotes
sandbox = Sandbox(Policy(namespaces=False))
sandbox.run("import os\\nif os.fork() == 0:\\n    os.setsid()\\n    import time\\n    time.sleep(1000)")
print(zygotes.owned_resources().folder, sandbox._core.handle.host_process(), flush=True)
sys.stdin.read()
"""

STAY = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.prctl(15, {name!r}.encode(), 0, 0, 0)
for hops in (True, False):
    if os.fork() == 0:
        os.setsid()
        libc.prctl(1, 0, 0, 0, 0)
        while True:
            if hops and os.fork(): os._exit(0)
            if not hops: time.sleep(1)
"""


def _check_that_nothing_is_left_of_a_killed_owner() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        folder, init = owner.stdout.readline().decode().split()
        assert os.path.isdir(folder)
        owner.kill()
    end = time.monotonic() + 20
    while os.path.exists(folder) or os.path.exists(f"/proc/{init}"):
        assert time.monotonic() < end, (os.path.exists(folder), os.path.exists(f"/proc/{init}"))
        time.sleep(0.02)


def _check_that_a_crowd_nobody_sees_takes_no_room(policy: Policy) -> None:
    """As in a container whose user lives in others, too: we are told of fewer processes than there are."""
    crowd = [subprocess.Popen(["sleep", "1000"], user=_user()) for _ in range(40)]
    seen = core._processes_of_user
    core._processes_of_user = lambda user: seen(user) - len(crowd)
    try:
        with Sandbox(dataclasses.replace(policy, processes=8)) as sandbox:
            result = sandbox.run("import subprocess; subprocess.run(['true']).returncode")
            assert result.json() == 0, result
    finally:
        core._processes_of_user = seen
        for process in crowd:
            process.kill()
            process.wait()


async def _check_that_files_are_removed_beside_the_event_loop(policy: Policy) -> str:
    """An agent may leave so many that removing them takes seconds. Answers with where they were."""
    threads: list[int] = []
    remove = core.Core.clear_home

    def spy(self: core.Core) -> None:
        threads.append(threading.get_ident())
        remove(self)

    core.Core.clear_home = spy  # type: ignore[method-assign]
    try:
        async with AsyncSandbox(policy) as sandbox:
            await sandbox.run("for i in range(100): open(str(i), 'w').close()")
            home = (await sandbox.run("import os; os.path.dirname(os.getcwd())")).json()
    finally:
        core.Core.clear_home = remove  # type: ignore[method-assign]
    assert threads
    assert threading.get_ident() not in threads
    return str(home)


def _check_that_nothing_is_left_of_a_killed_init(policy: Policy) -> None:
    name = f"left-{os.getpid()}"
    with Sandbox(policy) as other, Sandbox(policy) as sandbox:
        other.run("kept = 1")
        sandbox.run(STAY.format(name=name))
        assert survivors(name)
        init = sandbox._core.handle.host_process()
        assert init is not None
        os.kill(init, signal.SIGKILL)
        sandbox.close()
        assert survivors(name) == []
        assert other.run("kept").json() == 1


def _check_signals_on_an_older_kernel() -> None:
    """Where Landlock does not confine signals the agent reaches its own process group only."""
    policy = Policy(namespaces=False, landlock_abi=3)
    assert "processes" in policy.require
    with Sandbox(policy) as sandbox:
        report = sandbox.report()
        assert report.layers["signal rules"] == report.protections["processes"] == "on"
        assert report.layers["landlock signals"].startswith("unavailable: Landlock ABI 3")
        refused = sandbox.run("import os; os.kill(os.getppid(), 0)")
        assert refused.exception is not None
        assert refused.exception.type == "PermissionError"
        code = (
            "import signal\nheard = []\nsignal.signal(10, lambda *_: heard.append(1))\nos.kill(0, 10)\nheard"
        )
        assert sandbox.run(code).json() == [1]
        assert sandbox.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
        sandbox.run("if os.fork() == 0:\n    import time\n    time.sleep(1000)")
        assert sandbox.run("1 + 1").json() == 2
    with pytest.raises(ConfigurationError, match="filesystem"):
        Sandbox(Policy(namespaces=False, landlock_abi=0))


def _check_that_copies_of_files_are_complete(policy: Policy) -> None:
    for writer in (writers.PROCESS, writers.SHELL, writers.THREAD):
        with Sandbox(policy) as sandbox:
            writers.begin(sandbox, writer)
            for _ in range(6):
                with sandbox.copy() as copy:
                    assert writers.files_in(copy)[0] == writers.FILES
            writers.await_change(sandbox)


def _user() -> int:
    return os.geteuid() or NOBODY


def main() -> None:
    policy = Policy(namespaces=False, timeout_s=20)
    with Sandbox(policy) as sandbox:
        report = sandbox.report()
        assert report.grade == "container"
        assert report.layers["user namespace"] == "unavailable: switched off by the policy"
        assert report.layers["seccomp"] == report.layers["landlock"] == "on"
        assert sandbox.run("import xml.dom.minidom, subprocess, sys\nx = 41\nx + 1").json() == 42
        assert sandbox.run("open('f', 'w').write('kept')\nx").json() == 41
        code = "subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True).stdout"
        assert sandbox.run(code).json() == "1\n"
        assert sandbox.read_file("f") == b"kept"
        assert sandbox.run("import os; os.getuid()").json() != 0
        for attempt in (sandbox.fork, lambda: Sandbox(Policy(namespaces=False, require=frozenset({"fork"})))):
            with pytest.raises(ConfigurationError, match="switched off by the policy"):
                attempt()
        assert sandbox.grade("float(submission.read_file('f') == b'kept')").score == 1.0
        assert sandbox.run("while True: pass", timeout_s=0.3).outcome is Outcome.TIMED_OUT
        sandbox.run("if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(1000)")
        home = sandbox.run("os.path.dirname(os.getcwd())").json()
    assert not os.path.exists(home)
    assert not os.path.exists(asyncio.run(_check_that_files_are_removed_beside_the_event_loop(policy)))
    _check_that_a_crowd_nobody_sees_takes_no_room(policy)
    _check_that_copies_of_files_are_complete(policy)
    _check_that_nothing_is_left_of_a_killed_owner()
    _check_signals_on_an_older_kernel()
    _check_that_nothing_is_left_of_a_killed_init(policy)
    print("ok")


if __name__ == "__main__":
    main()
