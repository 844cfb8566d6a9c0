"""Forks made by an exposed function, while the code inside waits for its answer."""

import asyncio
from typing import Any

import pytest

from envtorch.sandbox import AsyncSandbox, Outcome, Policy, Sandbox

CALLING = """
def ask(things):
    global pending
    pending = things
    try:
        return children(len(things))
    finally:
        after.append(len(things))
after = []
class Odd: pass
answers = ask([Odd(), (i for i in range(3)), lambda: 7])
"""


def test_copies_have_what_the_caller_had_and_do_not_go_on(forkable: Sandbox) -> None:
    made: list[Sandbox] = []

    def children(count: int) -> list[str]:
        made.extend(forkable.fork(count))
        code = "thing = pending[{0}]; print('child {0}'); type(thing).__name__, after"
        return [str(child.run(code.format(number)).value) for number, child in enumerate(made)]

    forkable.expose("children", children)
    result = forkable.run(CALLING + "print(after); answers")
    try:
        assert result.outcome is Outcome.OK
        assert result.stdout == "[3]\n"
        assert result.json() == [f"('{kind}', [])" for kind in ("Odd", "generator", "function")]
        assert made[1].run("list(thing), thing is pending[1]").value == "([0, 1, 2], True)"
        assert made[2].run("thing()").value == "7"
        assert forkable.run("pending[1].__next__()").value == "0"
    finally:
        for child in made:
            child.close()
    assert forkable.run("answers[0]").outcome is Outcome.OK


def test_a_child_may_call_and_be_forked_itself(forkable: Sandbox) -> None:
    depths: list[int] = []

    def deeper(sandbox: Sandbox) -> Any:
        def call(depth: int) -> int:
            depths.append(depth)
            if depth == 3:
                return 1
            (child,) = sandbox.fork()
            with child:
                child.expose("deeper", deeper(child))
                return 1 + int(child.run(f"deeper({depth + 1})").json())

        return call

    forkable.expose("deeper", deeper(forkable))
    assert forkable.run("deeper(0)").json() == 4
    assert depths == [0, 1, 2, 3]
    assert forkable.run("1 + 1").json() == 2


def test_a_deadline_holds_in_a_copy_made_in_a_call(forkable: Sandbox) -> None:
    seen: list[Any] = []

    def look() -> None:
        (child,) = forkable.fork()
        with child:
            seen.append(child.run("kept = 1\nwhile True: pass", timeout_s=0.2).outcome)
            seen.append(child.run("kept").value)

    forkable.expose("look", look)
    assert forkable.run("look(); 5").value == "5"
    assert seen == [Outcome.TIMED_OUT, "1"]


def test_the_async_sandbox_too(forkable: Sandbox) -> None:
    async def main() -> None:
        async with AsyncSandbox(Policy()) as sandbox:

            async def children(count: int) -> list[int]:
                made = await sandbox.fork(count)
                try:
                    results = await asyncio.gather(*(child.run("len(data)") for child in made))
                    return [int(result.json()) for result in results]
                finally:
                    await asyncio.gather(*(child.close() for child in made))

            sandbox.expose("children", children)
            await sandbox.run("data = [0] * 12345")
            assert (await sandbox.run("children(3)")).json() == [12345] * 3
            (later,) = await sandbox.fork()
            async with later:
                assert (await later.run("len(data)")).json() == 12345

    asyncio.run(main())


@pytest.mark.parametrize("code", ["children(1)", "data.clear(); children(1)"])
def test_an_owner_that_fails_is_an_error_inside(forkable: Sandbox, code: str) -> None:
    def children(count: int) -> None:
        for child in forkable.fork(count):
            child.close()
        raise ValueError("and then this")

    forkable.expose("children", children)
    forkable.run("data = [1]")
    result = forkable.run(code)
    assert result.outcome is Outcome.ERROR
    assert "and then this" in str(result.exception)
    assert forkable.run("data is not None").value == "True"


def test_a_call_that_is_cancelled_costs_neither_the_interpreter_nor_the_next_answer(sandbox: Sandbox) -> None:
    async def main() -> None:
        async with AsyncSandbox(sandbox.policy) as caller:
            asked = asyncio.Event()

            async def never() -> None:
                asked.set()
                await asyncio.Event().wait()

            caller.expose("never", never)
            await caller.run("kept = 1")
            run = asyncio.ensure_future(caller.run("never()"))
            await asked.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert (await caller.run("kept + 1")).json() == 2

    asyncio.run(main())
