"""One client that is called a second time while it opens its session: it has one session, and no other."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from envtorch.errors import ClientBusy
from tests.client.test_clients import ObedientEnv
from tests.client.test_given_up_openings import may_build, serving_slowly_built
from tests.server.environments import Order
from tests.support import PATIENCE_S, Running, eventually


@pytest.fixture
def server() -> Iterator[Running]:
    may_build.set()
    with serving_slowly_built(4) as running_server:
        yield running_server


def test_a_reset_beside_connect_is_the_session_that_later_calls_use(server: Running) -> None:
    async def both() -> None:
        env = ObedientEnv.aio(server.url)
        await asyncio.gather(env.reset(episode_id="mine"), env.connect())
        assert (await env.state()).episode_id == "mine"
        await env.close()

    asyncio.run(both())


def test_close_beside_connect_leaves_no_session(server: Running) -> None:
    may_build.clear()

    async def both() -> None:
        env = ObedientEnv.aio(server.url)
        opening = asyncio.create_task(env.connect())
        await asyncio.to_thread(eventually, lambda: server.sessions.active == 1, "a session is being opened")
        closing = asyncio.create_task(env.close())
        await asyncio.sleep(0)
        may_build.set()
        await asyncio.gather(opening, closing)
        await asyncio.to_thread(eventually, lambda: server.sessions.active == 0, "the slot is free")

    asyncio.run(both())


def test_a_second_thread_is_refused_while_the_first_one_opens_the_session(server: Running) -> None:
    may_build.clear()
    env = ObedientEnv(server.url)
    thread = threading.Thread(target=env.reset, kwargs={"episode_id": "mine"})
    thread.start()
    eventually(lambda: server.sessions.active == 1, "a session is being opened")
    for call in (env.connect, env.reset, env.close):
        with pytest.raises(ClientBusy, match="use one per thread"):
            call()
    may_build.set()
    thread.join(PATIENCE_S)
    assert env.state().episode_id == "mine"
    assert env.step(Order(do="go on")).observation.said == "go on"
    assert server.sessions.active == 1
    env.close()
    eventually(lambda: server.sessions.active == 0, "the slot is free")
