"""Questions about an environment are all answered, whatever its sessions do, and change nothing for them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from envtorch.errors import SessionLost, TimedOut
from envtorch.protocol.calls import Call
from envtorch.server.app import HTTPEnvServer
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from tests.server.environments import Order, Report
from tests.server.hanging import HangsInStep, released
from tests.support import PATIENCE_S

METADATA = Call("metadata")


class Questioned(HangsInStep):
    """Its metadata waits, where a test wants it to."""

    entered = threading.Event()
    gate = threading.Event()

    def get_metadata(self) -> Any:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        return super().get_metadata()


class SlowToBuild(HangsInStep):
    gate = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        assert self.gate.wait(PATIENCE_S)


@asynccontextmanager
async def serving(source: Any, sessions: int = 4, **options: Any) -> AsyncIterator[Sessions]:
    server = HTTPEnvServer(source, Order, Report, max_concurrent_envs=sessions, **options)
    released.clear()
    Questioned.gate.set()
    try:
        yield server.sessions
    finally:
        released.set()
        Questioned.gate.set()
        await server.sessions.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for is not of this loop
        await asyncio.sleep(0.01)


async def hang(session: Session) -> None:
    """Make the session's environment hang in a step that nobody waits for any more."""
    await session.call(Call.reset())
    with pytest.raises(TimedOut):
        await session.call(Call.step(b'{"do":"hang"}'), timeout_s=0.1)
    assert not session.is_usable


@pytest.mark.parametrize("isolation", [None, "process"])
def test_questions_asked_together_are_all_answered(isolation: str | None) -> None:
    async def test() -> None:
        async with serving("tests.server.hanging:HangsInStep", isolation=isolation) as sessions:
            answers = await asyncio.gather(*(sessions.ask(METADATA) for _ in range(3)))
            assert len(set(answers)) == 1

    run(test)


def test_a_session_that_opens_during_a_question_leaves_it_its_answer() -> None:
    async def test() -> None:
        async with serving("tests.server.hanging:HangsInStep", isolation="process") as sessions:
            await sessions.spare()
            question = asyncio.ensure_future(sessions.ask(METADATA))
            await asyncio.sleep(0)
            session = await sessions.open(held=False)
            await session.call(Call.reset())
            assert b"HangsInStep" in await question

    run(test)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_question_that_takes_long_holds_up_no_session(is_given_up: bool) -> None:
    async def test() -> None:
        async with serving(Questioned) as sessions:
            Questioned.entered.clear()
            Questioned.gate.clear()
            question = asyncio.ensure_future(sessions.ask(METADATA))
            await until(Questioned.entered.is_set)
            if is_given_up:
                question.cancel()
            session = await sessions.open(held=False)
            assert session.runner is not await sessions.spare(), "which is still in the question"
            await session.call(Call.reset())
            Questioned.gate.set()
            if not is_given_up:
                assert b"Questioned" in await question
            assert b"Questioned" in await sessions.ask(METADATA)

    run(test)


def test_a_question_is_answered_by_another_session_while_the_oldest_is_stuck() -> None:
    async def test() -> None:
        async with serving(HangsInStep) as sessions:
            oldest = await sessions.open(held=False)
            await sessions.open(held=False)
            await hang(oldest)
            assert b"HangsInStep" in await sessions.ask(METADATA)
            assert sessions.questions.spare is None

    run(test)


def test_where_every_session_is_stuck_a_new_environment_answers_if_there_is_room_for_it() -> None:
    async def test() -> None:
        async with serving(HangsInStep, sessions=2) as sessions:
            await hang(await sessions.open(held=False))
            assert b"HangsInStep" in await sessions.ask(METADATA)
            await hang(await sessions.open(held=False))
            with pytest.raises(SessionLost, match="ask again"):
                await sessions.ask(METADATA)
            assert (await sessions.spare()).name == "HangsInStep"

    run(test)


def test_a_question_does_not_wait_for_a_step_while_another_session_is_idle() -> None:
    async def test() -> None:
        async with serving(HangsInStep) as sessions:
            oldest = await sessions.open(held=False)
            await sessions.open(held=False)
            await oldest.call(Call.reset())
            step = oldest.submit(Call.step(b'{"do":"hang"}'))
            assert b"HangsInStep" in await sessions.ask(METADATA)
            assert not step.is_settled

    run(test)


def test_questions_keep_no_session_alive() -> None:
    async def test() -> None:
        async with serving(HangsInStep) as sessions:
            session = await sessions.open(held=False, unheld_s=0.2)
            opened_at = session._active_at
            while session.is_usable:
                assert session._active_at == opened_at
                await sessions.ask(METADATA)
                await asyncio.sleep(0.01)

    run(test)


def test_a_socket_that_leaves_during_a_question_starts_the_lease() -> None:
    async def test() -> None:
        async with serving(Questioned) as sessions:
            session = await sessions.open(held=False, unheld_s=0.05)
            session.attach()
            Questioned.entered.clear()
            Questioned.gate.clear()
            question = asyncio.ensure_future(sessions.ask(METADATA))
            await until(Questioned.entered.is_set)
            await session.detach()
            Questioned.gate.set()
            assert b"Questioned" in await question
            await until(lambda: sessions.active == 0)

    run(test)


def test_a_lease_does_not_end_while_a_call_waits_for_a_question() -> None:
    async def test() -> None:
        async with serving(Questioned) as sessions:
            Questioned.gate.clear()
            session = await sessions.open(held=False, unheld_s=0.1)
            question = session.submit(METADATA, is_question=True)
            reset = session.submit(Call.reset())
            await asyncio.sleep(0.3)
            assert not question.is_settled
            Questioned.gate.set()
            await until(lambda: reset.is_settled)
            assert reset.error is None

    run(test)


def test_first_requests_that_come_together_share_the_anonymous_session() -> None:
    async def test() -> None:
        SlowToBuild.gate.clear()
        async with serving(SlowToBuild, sessions=1) as sessions:
            asking = [asyncio.ensure_future(sessions.anonymous()) for _ in range(3)]
            await asyncio.sleep(0)
            asking.pop(0).cancel()
            SlowToBuild.gate.set()
            first, second = await asyncio.gather(*asking)
            assert first is second is await sessions.anonymous()
            assert sessions.active == 1

    run(test)
