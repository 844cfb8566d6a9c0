"""Servers that cannot be reached or started, for a while or for good; and pools that cannot be."""

import asyncio
import math
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI

from envtorch.envs.echo_env import EchoEnv
from envtorch.errors import ConfigurationError, EngineUnavailable, EnvTorchError
from envtorch.pool import AsyncEnvPool, EnvPool
from tests.pool.test_pool import Borrowed
from tests.support import PATIENCE_S, Running, eventually, running

RARELY: dict[str, Any] = {"check_every_s": PATIENCE_S}
"""Nobody looks at a server, unless a session breaks there."""


@pytest.fixture
def one_is_dead(echo_server: Running) -> Callable[[], Borrowed]:
    """Providers of two servers: one is dead and not yet missed, and has as much room as the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"http://127.0.0.1:{listener.getsockname()[1]}"
    urls = iter([dead, echo_server.url])
    return lambda: Borrowed(next(urls, echo_server.url), [])


def test_a_session_passes_over_a_server_that_cannot_be_reached(one_is_dead: Callable[[], Borrowed]) -> None:
    with EnvPool(EchoEnv, one_is_dead, replicas=2, sessions_per_replica=1, **RARELY) as pool:
        eventually(lambda: pool.status().ready == 2, "both seem ready")
        with pool.session(timeout_s=PATIENCE_S) as env:
            env.reset()
            assert pool.status().busy == 1


def test_an_async_session_passes_over_it_too(one_is_dead: Callable[[], Borrowed]) -> None:
    async def run() -> None:
        options = {"replicas": 2, "sessions_per_replica": 1, **RARELY}
        async with AsyncEnvPool(EchoEnv.aio, one_is_dead, **options) as pool:
            while pool.status().ready < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with pool.session(timeout_s=PATIENCE_S) as env:
                await env.reset()
                assert pool.status().busy == 1

    asyncio.run(run())


def test_a_server_that_is_well_and_takes_no_session_is_told() -> None:
    app = FastAPI()
    app.get("/health")(lambda: {"status": "healthy"})
    with (
        running(app) as server,
        EnvPool(EchoEnv, lambda: Borrowed(server.url, []), replicas=1) as pool,
        pytest.raises(EnvTorchError, match=server.url.removeprefix("http://")),
        pool.session(),
    ):
        pass


class Crowded(Borrowed):
    """A provider whose cluster has room or has not."""

    has_room = threading.Event()
    made: list[Borrowed] = []
    url = ""

    def __init__(self) -> None:
        super().__init__(self.url, self.made)

    def start_container(self, *args: Any, **options: Any) -> str:
        if not self.has_room.is_set():
            raise EngineUnavailable("no node has room")
        return super().start_container(*args, **options)


def test_a_replica_that_could_not_be_started_is_started_when_there_is_room(crowded: type[Crowded]) -> None:
    options: dict[str, Any] = {"replicas": (1, 2), "sessions_per_replica": 1, "give_up_after": 2}
    with (
        EnvPool(EchoEnv, crowded, grow_after_s=0.0, check_every_s=0.05, **options) as pool,
        pool.session() as first,
        ThreadPoolExecutor(1) as threads,
    ):
        first.reset()
        crowded.has_room.clear()
        second = pool.session(timeout_s=PATIENCE_S)
        waiting = threads.submit(second.__enter__)
        eventually(lambda: pool.status().failing == 1, "the second replica fails")
        assert "no node has room" in str(pool.status().failure)
        crowded.has_room.set()
        with waiting.result(PATIENCE_S) as env:
            env.reset()
            assert (pool.status().ready, pool.status().busy) == (2, 2)
        assert (pool.status().failing, pool.status().failure) == (0, None)


def test_a_pool_without_any_server_says_why_until_it_has_one_again(crowded: type[Crowded]) -> None:
    options: dict[str, Any] = {"replicas": 1, "give_up_after": 2, "check_every_s": 0.05}
    with EnvPool(EchoEnv, crowded, **options) as pool:
        with pool.session() as env:
            env.reset()
        crowded.has_room.clear()
        crowded.made[-1].is_dead = True
        eventually(lambda: pool.status().failing == 1, "it cannot be replaced")
        with pytest.raises(EngineUnavailable, match="no node has room"), pool.session():
            pass
        crowded.has_room.set()
        eventually(lambda: pool.status().ready == 1, "its successor")
        with pool.session() as env:
            env.reset()


class Flavored(EchoEnv):
    """A client class with an option of its own."""

    def __init__(self, base_url: str, *, flavor: str = "none", reconnect_s: float = 5.0) -> None:
        super().__init__(base_url, reconnect_s=reconnect_s)
        self.flavor = flavor


class Spiced(EchoEnv):
    """One that passes the others on."""

    def __init__(self, base_url: str, *, spice: str = "none", **options: Any) -> None:
        super().__init__(base_url, **options)
        self.spice = spice


def test_a_client_class_may_have_options_of_its_own(crowded: type[Crowded]) -> None:
    with (
        EnvPool(Flavored, crowded, replicas=1, client_options={"flavor": "plum"}) as flavored,
        EnvPool(Spiced, crowded, replicas=1, client_options={"spice": "dill", "wire": "json"}) as spiced,
        flavored.session() as one,
        spiced.session() as other,
    ):
        assert (one.flavor, other.spice) == ("plum", "dill")
        AsyncEnvPool(Spiced.aio, crowded, client_options={"spice": "dill", "wire": "json"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"recover": "nope"}, "recover is 'replay'"),
        ({"check_every_s": -1}, "check_every_s=-1"),
        ({"check_every_s": math.nan}, "check_every_s=nan"),
        ({"max_waiting": -1}, "max_waiting=-1"),
        ({"sessions_per_replica": 1.5}, "sessions_per_replica=1.5"),
        ({"sessions_per_replica": "3"}, "sessions_per_replica='3'"),
        ({"shrink_after_s": "x"}, "shrink_after_s='x'"),
        ({"provider": "bogus"}, "there is no provider 'bogus'"),
        ({"provider": object()}, "makes a provider for each server"),
        ({"client_options": {"recconect_s": 1}}, "no option 'recconect_s'"),
        ({"client": lambda url: EchoEnv(url), "client_options": {"wire": "json"}}, "'wire'"),
        ({"client": Flavored, "client_options": {"salt": 1}}, "'salt'"),
        ({"client": Flavored.aio, "client_options": {"salt": 1}}, "'salt'"),
    ],
)
@pytest.mark.parametrize("kind", [EnvPool, AsyncEnvPool])
def test_what_cannot_be_is_refused_when_the_pool_is_made(
    kind: Callable[..., Any], options: dict[str, Any], told: str
) -> None:
    client = EchoEnv if kind is EnvPool else EchoEnv.aio
    with pytest.raises(ConfigurationError, match=told):
        kind(**{"client": client, "provider": "process", "image": "a:b", **options})


def test_a_session_of_a_pool_that_is_not_open_is_refused(crowded: type[Crowded]) -> None:
    pool = EnvPool(EchoEnv, crowded, replicas=1)
    with pytest.raises(ConfigurationError, match="not open"), pool.session():
        pass
    with pool.open(), pool.session() as env:
        env.reset()


def test_a_pool_that_was_closed_is_not_opened_again(crowded: type[Crowded]) -> None:
    pool = EnvPool(EchoEnv, crowded, replicas=1)
    pool.open()
    pool.close()
    with pytest.raises(ConfigurationError, match="make another one"):
        pool.open()
    assert all(thread.name != "envtorch-pool-0" for thread in threading.enumerate())
