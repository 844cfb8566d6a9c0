"""A sandbox belongs to the process that made it: a forked child of that process cannot use it, nor end it."""

import asyncio
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

from envtorch.errors import WrongProcess
from envtorch.sandbox import AsyncSandbox, Policy, Pool, Sandbox
from tests.support import PATIENCE_S, eventually


def in_a_child(body: Callable[[], None]) -> None:
    """Run `body` in a forked process. Raises `AssertionError` if it raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


USES: dict[str, Callable[[Sandbox], object]] = {
    "run": lambda sandbox: sandbox.run("x = 2"),
    "exec": lambda sandbox: sandbox.exec(["true"]),
    "read_file": lambda sandbox: sandbox.read_file("f"),
    "write_file": lambda sandbox: sandbox.write_file("f", "child"),
    "list_files": lambda sandbox: sandbox.list_files(),
    "variables": lambda sandbox: sandbox.variables(),
    "interrupt": lambda sandbox: sandbox.interrupt(),
    "fork": lambda sandbox: sandbox.fork(),
    "copy": lambda sandbox: sandbox.copy(),
    "grade": lambda sandbox: sandbox.grade("1.0"),
}


@pytest.mark.parametrize("use", USES)
def test_a_sandbox_cannot_be_used_in_a_forked_child(sandbox: Sandbox, use: str) -> None:
    sandbox.run("x = 1; open('f', 'w').write('parent')")

    def child() -> None:
        with pytest.raises(WrongProcess, match="new one in the child"):
            USES[use](sandbox)

    in_a_child(child)
    assert sandbox.run("x").json() == 1
    assert sandbox.read_file("f") == b"parent"


def test_a_sandbox_that_another_thread_is_using_does_not_hang_a_forked_child(sandbox: Sandbox) -> None:
    def child() -> None:
        with pytest.raises(WrongProcess):
            sandbox.run("1")
        sandbox.close()

    sandbox.expose("fork_the_owner", lambda: in_a_child(child))
    assert sandbox.run("fork_the_owner(); 5").json() == 5


def test_async_sandboxes_and_pools_cannot_be_used_in_a_forked_child(policy: Policy) -> None:
    async def main() -> int:
        async with AsyncSandbox(policy) as sandbox:
            await sandbox.run("x = 1")
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    await sandbox.run("x = 2")
                except WrongProcess:
                    await sandbox.close()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222  it ends at once
            return int((await sandbox.run("x")).json())

    assert asyncio.run(main()) == 1
    with Pool(policy, size=1) as pool:
        taken = pool.take(timeout_s=PATIENCE_S)

        def child() -> None:
            with pytest.raises(WrongProcess):
                pool.take(timeout_s=1)
            pool.close()

        in_a_child(child)
        assert taken.run("1").ok
        taken.close()
        pool.take(timeout_s=PATIENCE_S).close()


def test_a_forked_child_has_sandboxes_of_its_own(sandbox: Sandbox) -> None:
    def child() -> None:
        with Sandbox(sandbox.policy) as own:
            assert own.run("2 + 2").json() == 4
        own.close()

    sandbox.run("x = 1")
    in_a_child(child)
    assert sandbox.run("x").json() == 1


EXITING = """
import gc, json, os, sys
from envtorch.sandbox import Sandbox, shutdown
made = [Sandbox() for _ in range(3)]
for sandbox in made: sandbox.run("x = 1")
fork = made[0].fork()[0] if made[0].report().protects("fork") else Sandbox()
for way in range(3):
    child = os.fork()
    if child == 0:
        if way == 1:
            del made, fork, sandbox; gc.collect()
        if way == 2:
            shutdown()
        sys.exit()
    os.waitpid(child, 0)
print(json.dumps([sandbox.run("x").json() for sandbox in made]))
with fork, Sandbox() as later:
    print(json.dumps([fork.run("1").json(), later.run("1").json()]))
"""


def test_nothing_a_child_does_at_its_exit_ends_a_parents_sandbox_or_zygote() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXITING],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[1, 1, 1], [1, 1]], done.stderr
    assert done.stderr == ""


OUTLIVED = """
import os, sys, time
from envtorch.sandbox import Sandbox
sandbox = Sandbox()
print(sandbox._core.handle.host_process(), sandbox._core.zygote.supervisor.pid, flush=True)
if os.fork() == 0:
    os.close(1)
    sys.stdin.read()
    os._exit(0)
os._exit(0)
"""


def test_a_child_that_outlives_the_owner_keeps_no_sandbox_alive() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OUTLIVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        processes = owner.stdout.readline().split()
        owner.wait(PATIENCE_S)
        assert len(processes) == 2
        eventually(
            lambda: not any(os.path.exists(f"/proc/{process}") for process in processes),
            "the sandbox and its supervisor are gone while the child lives",
        )
        owner.stdin.close()
