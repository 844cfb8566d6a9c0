"""The async twin: the same names, the same answers, and never a blocked loop."""

import asyncio
import inspect
import time

import pytest

from envtorch.errors import SessionLost
from envtorch.sandbox import AsyncSandbox, Outcome, Policy, Sandbox
from tests.support import PATIENCE_S


def _public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_the_twins_have_the_same_names() -> None:
    assert _public(AsyncSandbox) - {"open"} == _public(Sandbox)
    for name in _public(Sandbox):
        ours, theirs = getattr(AsyncSandbox, name), getattr(Sandbox, name)
        if callable(theirs):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), (
                name
            )


def test_running_files_commands_and_functions(policy: Policy) -> None:
    async def scenario() -> None:
        async def ask(word: str) -> str:
            await asyncio.sleep(0)
            return word * 2

        async with AsyncSandbox(policy, functions={"ask": ask}) as sandbox:
            assert (await sandbox.run("x = ask('a'); x")).json() == "aa"
            sandbox.expose("plain", lambda: 3)
            assert (await sandbox.run("plain()")).json() == 3
            await sandbox.write_file("f", "text")
            assert await sandbox.read_file("f") == b"text"
            assert [entry.path for entry in await sandbox.list_files()] == ["f"]
            assert (await sandbox.exec(["cat", "f"])).stdout == b"text"
            assert set(await sandbox.variables()) == {"x"}
            assert (await sandbox.run("while True: pass", timeout_s=0.2)).outcome is Outcome.TIMED_OUT
            assert (await sandbox.grade("float(submission.read_file('f') == b'text')")).score == 1.0
        with pytest.raises(SessionLost):
            await sandbox.run("1")

    asyncio.run(scenario())


def test_many_at_once_do_not_block_the_loop(policy: Policy) -> None:
    async def scenario() -> None:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        async def one(number: int) -> int:
            async with AsyncSandbox(policy) as sandbox:
                result = await sandbox.run(f"import time; time.sleep(0.2); {number}")
                return int(result.json())

        heart = asyncio.create_task(beat())
        assert await asyncio.gather(*(one(number) for number in range(8))) == list(range(8))
        heart.cancel()
        assert beats >= 5

    asyncio.run(scenario())


def test_forks_and_interrupts(policy: Policy) -> None:
    async def scenario() -> None:
        async with AsyncSandbox(policy) as sandbox:
            if not sandbox.report().protects("fork"):
                pytest.skip("sandboxes cannot be forked here")
            await sandbox.run("x = 1")
            forks = await sandbox.fork(3)
            answers = await asyncio.gather(*(fork.run(f"x += {n}; x") for n, fork in enumerate(forks)))
            assert [answer.json() for answer in answers] == [1, 2, 3]
            await asyncio.gather(*(fork.close() for fork in forks))
            started = asyncio.Event()

            async def begin() -> None:
                started.set()

            sandbox.expose("begin", begin)
            running = asyncio.create_task(sandbox.run("begin()\nwhile True: pass"))
            await started.wait()
            began = time.monotonic()
            while not running.done():
                sandbox.interrupt()
                await asyncio.sleep(0.02)
                assert time.monotonic() - began < 30
            assert (await running).outcome is Outcome.INTERRUPTED
            assert (await sandbox.run("x")).json() == 1

    asyncio.run(scenario())


def test_a_run_that_is_cancelled_stops_and_the_sandbox_goes_on(policy: Policy) -> None:
    async def scenario() -> None:
        async with AsyncSandbox(policy) as sandbox:
            await sandbox.run("x = 1")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sandbox.run("while True: pass"), timeout=0.3)
            assert (await sandbox.run("x")).json() == 1

    asyncio.run(scenario())


IS_THERE = """
import os
try: os.kill(int(open('pid').read()), 0)
except ProcessLookupError: found = False
except PermissionError: found = True
else: found = True
found
"""


def test_a_command_that_is_cancelled_is_ended_and_forgotten(policy: Policy) -> None:
    async def scenario() -> None:
        async with AsyncSandbox(policy) as sandbox:
            if sandbox.report().grade != "host":
                pytest.skip(
                    "sandboxes have no process namespace here, and their code may signal itself alone"
                )
            for patience_s in (0.5, 2.0, 8.0, 32.0):  # until it has begun
                command = sandbox.exec(["sh", "-c", "echo $$ > pid; exec sleep 1000"], timeout_s=900.0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(command, patience_s)
                if (await sandbox.exec(["test", "-s", "pid"])).ok:
                    break
            deadline = time.monotonic() + PATIENCE_S
            while (await sandbox.run(IS_THERE)).json():
                assert time.monotonic() < deadline
            assert (await sandbox.exec(["true"])).ok
            assert not sandbox._core.handle.exits

    asyncio.run(scenario())


def test_a_sandbox_that_has_not_started_says_so() -> None:
    async def scenario() -> None:
        with pytest.raises(SessionLost, match="async with"):
            await AsyncSandbox().run("1")

    asyncio.run(scenario())
