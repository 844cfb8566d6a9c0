"""Starting, ending and being killed: nobody else notices, and nothing is left behind."""

import contextlib
import dataclasses
import functools
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envtorch.errors import EnvTorchError
from envtorch.sandbox import Policy, Pool, Sandbox, zygotes
from tests.support import PATIENCE_S


def _eventually(condition: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)  # processes end when the kernel is done with them; there is no event to wait for
    return False


def test_closing_ends_daemons_and_gives_descriptors_back(policy: Policy) -> None:
    for _ in range(2):
        Sandbox(policy).close()  # the zygote's own descriptors are there from now on, and a spare's
    before = _open_descriptors()
    for _ in range(5):
        with Sandbox(policy) as sandbox:
            sandbox.run(
                "import os\nif os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(1000)"
            )
            watch = os.dup(sandbox._core.handle.watch or -1)
        assert _eventually(functools.partial(_ended, watch))
        os.close(watch)
    assert _open_descriptors() == before


def _open_descriptors() -> int:
    zygotes.owned_resources().builder.submit(
        lambda: None
    ).result()  # the spare that is being built has its own, too
    return len(os.listdir("/proc/self/fd"))


def _ended(watch: int) -> bool:
    try:
        signal.pidfd_send_signal(watch, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_forked_child_of_the_owner_leaves_the_sandbox_alone(policy: Policy) -> None:
    with Sandbox(policy) as sandbox:
        sandbox.run("x = 1")
        child = os.fork()
        if child == 0:
            try:
                sandbox.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert sandbox.run("x").json() == 1


def test_a_sandbox_nobody_holds_is_closed(policy: Policy) -> None:
    sandbox = Sandbox(policy)
    core = sandbox._core
    del sandbox
    gc.collect()
    assert core.closed


def test_a_zygote_that_is_killed_is_replaced_and_its_sandboxes_live(policy: Policy) -> None:
    policy = dataclasses.replace(policy, timeout_s=19.0)  # nobody else's, so no spare of it lies ready
    with Sandbox(policy) as old:
        old.run("x = 1")
        os.kill(old._core.zygote.process, signal.SIGKILL)
        assert _eventually(lambda: not old._core.zygote.is_alive())
        with Sandbox(policy) as new:
            assert new._core.zygote is not old._core.zygote
            assert new.run("2").json() == 2
        assert old.run("x").json() == 1
        if old.report().protects("fork"):
            with old.fork()[0] as fork:
                assert fork.run("x").json() == 1


def test_a_supervisor_that_is_killed_is_replaced(policy: Policy) -> None:
    with Sandbox(policy) as old:
        old._core.zygote.supervisor.kill()
        old._core.zygote.supervisor.wait()
        with Sandbox(policy) as new:
            assert new.run("2").json() == 2
        assert old.run("1").json() == 1


def test_random_kills_under_load_harm_nobody_else(policy: Policy) -> None:
    """Zygotes, supervisors, inits and interpreters are killed while others work."""
    chance = random.Random(5)
    stop = threading.Event()
    wrong: list[object] = []

    def work() -> None:
        while not stop.is_set():
            try:
                with Sandbox(policy) as sandbox:
                    if sandbox.report().protects("fork"):
                        with sandbox.fork()[0] as fork:
                            fork.run("1").json()
                    for number in range(20):
                        answer = sandbox.run(f"x = {number}; x * 2").json()
                        if answer != number * 2:
                            wrong.append(answer)
            except Exception as error:
                wrong.append(error)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(12):
            victim = Sandbox(policy)
            victim.run("1")
            zygote = zygotes.zygote_for(policy)
            what = chance.choice(["zygote", "supervisor", "init", "interpreter"])
            if what == "zygote":
                os.kill(zygote.process, signal.SIGKILL)
                assert victim.run("1").json() == 1
            elif what == "supervisor":
                os.kill(zygote.supervisor.pid, signal.SIGKILL)
                assert victim.run("1").json() == 1
            elif what == "init":
                victim._core.handle.kill()
                assert _eventually(victim._core.handle.is_gone)
                assert not victim.run("1").alive
            else:
                assert not victim.run("import os; os.kill(os.getpid(), 9); import time; time.sleep(5)").alive
            victim.close()
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert wrong == []


OWNER = """
import json, os, sys
from envtorch.sandbox import Policy, Sandbox, zygotes
made = [Sandbox(Policy(readable=(sys.argv[1],))) for _ in range(3)]
for sandbox in made:
    sandbox.run("import os\\nif os.fork() == 0:\\n    os.setsid()\\n    import time\\n    time.sleep(1000)")
made += made[0].fork(2) if made[0].report().protects("fork") else []
groups = sorted({str(folder) for folder in zygotes.owned_resources().groups.folders.values()})
zygote = made[0]._core.zygote
inits = [sandbox._core.handle.host_process() for sandbox in made]
processes = [zygote.process, zygote.supervisor.pid, *inits]
print(json.dumps({"groups": groups, "processes": processes}), flush=True)
if sys.argv[2] == "exit":
    sys.exit()
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_nothing_is_left_of_an_owner_that_ends_or_is_killed(tmp_path: Path, end: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), end], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None
        told = json.loads(owner.stdout.readline())
        if end == "kill":
            owner.kill()
        owner.wait(timeout=PATIENCE_S)
    assert len(told["processes"]) >= 5
    assert _eventually(lambda: not any(os.path.exists(f"/proc/{process}") for process in told["processes"]))
    assert _eventually(lambda: not any(os.path.exists(group) for group in told["groups"]))


def test_a_pool_hands_out_ready_sandboxes_once(policy: Policy) -> None:
    with Pool(policy, size=2) as pool:
        taken = [pool.take(timeout_s=PATIENCE_S) for _ in range(4)]
        assert len({id(sandbox) for sandbox in taken}) == 4
        assert [sandbox.run("1").json() for sandbox in taken] == [1] * 4
        for sandbox in taken:
            sandbox.close()
    with pytest.raises(EnvTorchError, match="closed"):
        pool.take()


def test_importing_the_package_is_light() -> None:
    code = "import sys, envtorch.sandbox; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & {"fastapi", "pydantic", "uvicorn", "numpy", "pyseccomp", "smolagents", "httpx"}


def test_an_owner_with_many_descriptors(policy: Policy) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"this user may have {hard} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        nothing = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, nothing)
        for _ in range(1100):
            stack.callback(os.close, os.dup(nothing))
        for _ in range(3):  # the third is a spare
            sandbox = stack.enter_context(Sandbox(dataclasses.replace(policy, timeout_s=18.0)))
            sandbox.write_file("here", "x")
            assert sandbox.run("open('here').read()").value == "'x'"
            assert sandbox.exec(["true"]).exit_status == 0
