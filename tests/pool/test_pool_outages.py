"""What the pools do in spite of providers, servers and networks that fail while they are used."""

import asyncio
import functools
import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from envtorch.envs.echo_env import EchoEnv
from envtorch.errors import ConnectFailed, EngineUnavailable, TimedOut
from envtorch.pool import AsyncEnvPool, EnvPool, Failed, Finished
from envtorch.pool.leases import MOST_SERVERS
from envtorch.pool.outcomes import is_infrastructure
from envtorch.pool.replica_keeper import FIRST_PAUSE_S
from envtorch.providers.provider_base import Status
from tests.pool.test_pool import Borrowed, play, play_async
from tests.pool.test_pool_failures import RARELY, Crowded
from tests.support import PATIENCE_S, Running, eventually


@pytest.fixture
def dead_url() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Forgetful(Borrowed):
    """A provider that cannot always tell whether its server lives."""

    cannot_tell = threading.Event()

    def status(self) -> Status:
        if self.cannot_tell.is_set():
            raise EngineUnavailable("the control plane is away")
        return super().status()


class Unconfirmed(Borrowed):
    """A provider whose server is not ready before it is stopped, and that cannot tell that it was."""

    def __init__(self, made: list[Borrowed]) -> None:
        super().__init__("http://127.0.0.1:9", made)
        self.is_waiting, self.is_stopped = threading.Event(), threading.Event()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        self.is_waiting.set()
        assert self.is_stopped.wait(PATIENCE_S)
        raise EngineUnavailable("it was stopped")

    def stop_container(self) -> None:
        self.is_stopped.set()
        raise EngineUnavailable("the engine does not answer")


def test_a_provider_that_cannot_stop_its_server_keeps_close_from_no_other() -> None:
    made: list[Borrowed] = []

    def make() -> Unconfirmed:
        return Unconfirmed(made)

    pool = EnvPool(EchoEnv, make, replicas=3).open()
    eventually(lambda: len(made) == 3, "each has begun")
    waiting = [one for one in made if isinstance(one, Unconfirmed)]
    eventually(lambda: all(one.is_waiting.is_set() for one in waiting), "each waits for its server")
    pool.close()
    assert all(one.is_stopped.is_set() for one in waiting)
    assert not any(thread.name.startswith("envtorch-pool") for thread in threading.enumerate())


def test_a_provider_that_cannot_tell_costs_no_replica(echo_server: Running) -> None:
    made: list[Borrowed] = []
    with EnvPool(EchoEnv, lambda: Forgetful(echo_server.url, made), replicas=1, check_every_s=0.01) as pool:
        with pool.session() as env:
            env.reset()
        Forgetful.cannot_tell.set()
        try:
            threading.Event().wait(0.5)  # it is looked at again and again meanwhile
            assert (pool.status().ready, pool.status().replaced) == (1, 0)
        finally:
            Forgetful.cannot_tell.clear()
        made[-1].is_dead = True
        eventually(lambda: pool.status().replaced == 1 and pool.status().ready == 1, "it is still watched")
        with pool.session(timeout_s=PATIENCE_S) as env:
            env.reset()


def test_a_replica_that_cannot_be_watched_is_replaced(echo_server: Running) -> None:
    urls = iter(["http://127.0.0.1:nowhere"])
    with EnvPool(
        EchoEnv, lambda: Borrowed(next(urls, echo_server.url), []), replicas=1, check_every_s=0.01
    ) as pool:
        eventually(lambda: pool.status().replaced == 1 and pool.status().ready == 1, "its successor is there")
        with pool.session(timeout_s=PATIENCE_S) as env:
            env.reset()


FATAL = "tests.pool.fatal_sessions:app"
"""A server that is healthy, and ends when a session is opened."""


def test_a_session_that_ends_every_server_is_an_outcome() -> None:
    with EnvPool(EchoEnv, "process", FATAL, replicas=1) as pool:
        (outcome,) = pool.run(play, [0], attempts=1)
        assert isinstance(outcome, Failed)
        assert is_infrastructure(outcome.error), outcome.error
        assert pool.status().replaced <= MOST_SERVERS


def test_an_async_session_that_ends_every_server_is_an_outcome_too() -> None:
    async def run() -> None:
        async with AsyncEnvPool(EchoEnv.aio, "process", FATAL, replicas=1) as pool:
            (outcome,) = [o async for o in pool.run(play_async, [0], attempts=1)]
            assert isinstance(outcome, Failed)
            assert is_infrastructure(outcome.error), outcome.error
            assert pool.status().replaced <= MOST_SERVERS

    asyncio.run(run())


def test_a_slot_whose_replicas_die_at_once_pauses_longer_each_time(echo_server: Running) -> None:
    starts: list[float] = []

    class ShortLived(Borrowed):
        def start_container(self, *args: Any, **options: Any) -> str:
            starts.append(time.monotonic())
            self.is_dead = True
            return super().start_container(*args, **options)

    with EnvPool(EchoEnv, lambda: ShortLived(echo_server.url, []), replicas=1, check_every_s=0.01) as pool:
        eventually(lambda: pool.status().replaced == 4, "four have died")
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses[1] >= FIRST_PAUSE_S
    assert pauses[2] >= 2 * FIRST_PAUSE_S


UNREACHED = r"within 1\.5 s, after a server that could not be reached"


@pytest.fixture
def unreachable(dead_url: str) -> dict[str, Any]:
    """A pool with one server, which cannot be reached, and is not given up."""
    make = functools.partial(Borrowed, dead_url, [])
    return {"provider": make, "replicas": 1, "unhealthy_after": 1000, **RARELY}


def test_a_session_that_was_not_free_in_time_tells_of_the_server_that_was_not_reached(
    unreachable: dict[str, Any],
) -> None:
    with EnvPool(EchoEnv, **unreachable) as pool:
        eventually(lambda: pool.status().ready == 1, "it seems ready")
        with pytest.raises(TimedOut, match=UNREACHED) as caught, pool.session(timeout_s=1.5):
            pass
    assert isinstance(caught.value.__cause__, ConnectFailed)


def test_an_async_session_tells_of_it_too(unreachable: dict[str, Any]) -> None:
    async def run() -> None:
        async with AsyncEnvPool(EchoEnv.aio, **unreachable) as pool:
            while pool.status().ready < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with pytest.raises(TimedOut, match=UNREACHED) as caught:
                await pool.session(timeout_s=1.5).__aenter__()
            assert isinstance(caught.value.__cause__, ConnectFailed)

    asyncio.run(run())


def make_an_outage(pool: Any, crowded: type[Crowded]) -> None:
    """From a pool with a server to one that has none and can start none."""
    eventually(lambda: pool.status().ready == 1, "it has a server")
    crowded.has_room.clear()
    crowded.made[-1].is_dead = True
    eventually(lambda: pool.status().failing == 1, "it cannot be replaced")


OUTAGES: dict[str, Any] = {
    "replicas": 1,
    "sessions_per_replica": 2,
    "give_up_after": 1,
    "check_every_s": 0.05,
}


def test_a_run_waits_for_an_outage_to_pass(crowded: type[Crowded]) -> None:
    with EnvPool(EchoEnv, crowded, **OUTAGES) as pool:
        make_an_outage(pool, crowded)
        with ThreadPoolExecutor(1) as threads:
            outcomes = threads.submit(lambda: list(pool.run(play, range(4), attempts=1)))
            eventually(lambda: pool.status().waiting == 2, "its episodes wait")
            crowded.has_room.set()
            assert all(isinstance(outcome, Finished) for outcome in outcomes.result(PATIENCE_S))


def test_an_async_run_waits_for_an_outage_to_pass(crowded: type[Crowded]) -> None:
    async def run() -> None:
        async with AsyncEnvPool(EchoEnv.aio, crowded, **OUTAGES) as pool:
            await asyncio.to_thread(make_an_outage, pool, crowded)

            async def end_it() -> None:
                while pool.status().waiting < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                crowded.has_room.set()

            ending = asyncio.create_task(end_it())
            outcomes = [outcome async for outcome in pool.run(play_async, range(4), attempts=1)]
            await ending
            assert all(isinstance(outcome, Finished) for outcome in outcomes)

    asyncio.run(run())


def test_a_run_tells_why_when_an_outage_does_not_pass(crowded: type[Crowded]) -> None:
    with EnvPool(EchoEnv, crowded, **OUTAGES) as pool:
        make_an_outage(pool, crowded)
        outcomes = list(pool.run(play, range(4), attempts=2, outage_s=0.5))
        assert all(isinstance(outcome, Failed) for outcome in outcomes)
        assert {str(outcome.error) for outcome in outcomes if isinstance(outcome, Failed)} == {
            "no node has room"
        }


class Slow(Crowded):
    """A provider whose servers start when there is room, and not before."""

    def start_container(self, *args: Any, **options: Any) -> str:
        self.has_room.wait(2 * PATIENCE_S)
        return super().start_container(*args, **options)


def test_a_run_that_is_left_early_waits_for_no_session(crowded: type[Crowded]) -> None:
    def play_and_lose_the_server(env: EchoEnv, item: int) -> None:
        play(env, item)
        Slow.has_room.clear()
        Slow.made[-1].is_dead = True
        eventually(lambda: pool.status().replaced == 1, "the server is gone")

    Slow.url, Slow.made = crowded.url, crowded.made
    with EnvPool(EchoEnv, Slow, **OUTAGES) as pool, pool.session(), ThreadPoolExecutor(1) as threads:
        try:
            outcomes = pool.run(play_and_lose_the_server, range(2))
            assert isinstance(next(outcomes), Finished)
            eventually(lambda: pool.status().waiting == 1, "the other one waits for a session")
            threads.submit(outcomes.close).result(PATIENCE_S)  # type: ignore[attr-defined]
            assert pool.status().waiting == 0
        finally:
            Slow.has_room.set()
