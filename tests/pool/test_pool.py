"""The pools over real servers: back-pressure, replacement, and no episode lost in silence."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from envtorch.client import AsyncEnvClient
from envtorch.envs.echo_env import EchoAction, EchoEnv, EchoObservation, EchoState
from envtorch.errors import (
    CapacityReached,
    ConfigurationError,
    EngineUnavailable,
    EnvTorchError,
    OutOfResources,
    SessionLost,
    TimedOut,
)
from envtorch.pool import AsyncEnvPool, EnvPool, Failed, Finished
from envtorch.pool.outcomes import is_infrastructure
from envtorch.providers import ProcessProvider
from envtorch.providers.provider_base import ContainerProvider, Phase, Status
from tests.support import Running, eventually

ECHO = "envtorch.envs.echo_env.app:app"


class Borrowed(ContainerProvider):
    """A provider over a server that is there already; its death is a flag."""

    def __init__(self, url: str, made: list["Borrowed"]) -> None:
        super().__init__()
        self._url = url
        self.is_dead = False
        made.append(self)

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        return self._url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None: ...

    def stop_container(self) -> None: ...

    def status(self) -> Status:
        return Status(Phase.EXITED if self.is_dead else Phase.RUNNING)


class Absent(Borrowed):
    """A provider that cannot start anything."""

    def start_container(self, *args: Any, **options: Any) -> str:
        raise EngineUnavailable("no engine today")


@pytest.fixture
def made() -> list[Borrowed]:
    return []


@pytest.fixture
def borrowed(echo_server: Running, made: list[Borrowed]) -> Callable[[], Borrowed]:
    return lambda: Borrowed(echo_server.url, made)


def play(env: EchoEnv, item: int) -> float:
    env.reset(seed=item)
    return sum(env.step(EchoAction(message="x" * item)).reward or 0.0 for _ in range(3))


async def play_async(env: AsyncEnvClient[EchoAction, EchoObservation, EchoState], item: int) -> float:
    await env.reset(seed=item)
    return sum([(await env.step(EchoAction(message="x" * item))).reward or 0.0 for _ in range(3)])


def test_every_item_has_one_outcome(borrowed: Callable[[], Borrowed]) -> None:
    with EnvPool(EchoEnv, borrowed, replicas=2, sessions_per_replica=3) as pool:
        outcomes = list(pool.run(play, range(40)))
    values = {o.item: o.value for o in outcomes if isinstance(o, Finished)}
    assert values == {item: pytest.approx(0.3 * item) for item in range(40)}
    assert len(outcomes) == 40


def test_the_async_pool_does_the_same(borrowed: Callable[[], Borrowed]) -> None:
    async def run() -> list[Any]:
        async with AsyncEnvPool(EchoEnv.aio, borrowed, replicas=2, sessions_per_replica=3) as pool:
            return [outcome async for outcome in pool.run(play_async, range(40))]

    outcomes = asyncio.run(run())
    values = {o.item: o.value for o in outcomes if isinstance(o, Finished)}
    assert values == {item: pytest.approx(0.3 * item) for item in range(40)}
    assert len(outcomes) == 40


def test_a_session_waits_its_turn_and_may_give_up(borrowed: Callable[[], Borrowed]) -> None:
    with (
        EnvPool(EchoEnv, borrowed, replicas=1, sessions_per_replica=1, max_waiting=1) as pool,
        pool.session() as env,
    ):
        env.reset()
        with (
            pytest.raises(TimedOut, match="no session was free"),
            pool.session(timeout_s=0.05),
        ):
            pass
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(lambda: pool.session().__enter__())
            eventually(lambda: pool.status().waiting == 1, "one waits")
            with pytest.raises(CapacityReached), pool.session():
                pass
            pool.close()
            with pytest.raises(SessionLost, match="the pool is closed"):
                waiting.result()


def test_an_async_session_waits_its_turn_and_may_be_cancelled(borrowed: Callable[[], Borrowed]) -> None:
    async def run() -> None:
        async with AsyncEnvPool(EchoEnv.aio, borrowed, replicas=1, sessions_per_replica=1) as pool:
            async with pool.session() as env:
                await env.reset()
                with pytest.raises(TimedOut):
                    async with pool.session(timeout_s=0.05):
                        pass
                waiting = asyncio.create_task(pool.session().__aenter__())
                await asyncio.sleep(0)
                assert pool.status().waiting == 1
                waiting.cancel()
                await asyncio.wait([waiting])
                assert pool.status().waiting == 0
            async with pool.session(timeout_s=10.0) as env:
                await env.reset()

    asyncio.run(run())


def test_a_dead_replica_is_replaced(borrowed: Callable[[], Borrowed], made: list[Borrowed]) -> None:
    with EnvPool(EchoEnv, borrowed, replicas=2, sessions_per_replica=1, check_every_s=0.05) as pool:
        eventually(lambda: pool.status().ready == 2, "both are ready")
        made[0].is_dead = True
        eventually(lambda: pool.status().replaced == 1 and pool.status().ready == 2, "a successor")
        assert len(made) == 3


def test_an_episode_that_fails_by_itself_is_not_played_again(borrowed: Callable[[], Borrowed]) -> None:
    played: Counter[int] = Counter()

    def fail(env: EchoEnv, item: int) -> None:
        played[item] += 1
        raise ZeroDivisionError(item)

    with EnvPool(EchoEnv, borrowed, replicas=1) as pool:
        outcomes = list(pool.run(fail, range(3)))
    assert all(isinstance(o, Failed) and isinstance(o.error, ZeroDivisionError) for o in outcomes)
    assert played == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("error", [TimedOut("too slow"), OutOfResources("too large")])
def test_an_episode_that_exceeds_a_limit_is_the_agents_and_is_not_played_again(
    borrowed: Callable[[], Borrowed], error: Exception
) -> None:
    played = 0

    def exceed(env: EchoEnv, item: int) -> None:
        nonlocal played
        played += 1
        raise error

    with EnvPool(EchoEnv, borrowed) as pool:
        (outcome,) = pool.run(exceed, [1])
    assert isinstance(outcome, Failed)
    assert (outcome.error, outcome.lost, played) == (error, (), 1)


def test_an_episode_lost_to_the_infrastructure_is_played_again_and_told(
    borrowed: Callable[[], Borrowed],
) -> None:
    played: Counter[int] = Counter()

    def lose(env: EchoEnv, item: int) -> str:
        played[item] += 1
        if item == 0 or played[item] == 1:
            raise SessionLost(f"attempt {played[item]}")
        return "won"

    with EnvPool(EchoEnv, borrowed, replicas=2) as pool:
        outcomes = {o.item: o for o in pool.run(lose, range(2), attempts=3)}
    lost, won = outcomes[0], outcomes[1]
    assert isinstance(lost, Failed)
    assert [str(error) for error in (*lost.lost, lost.error)] == ["attempt 1", "attempt 2", "attempt 3"]
    assert isinstance(won, Finished)
    assert (won.value, [str(error) for error in won.lost]) == ("won", ["attempt 1"])


@pytest.mark.parametrize("error", [TimedOut, OutOfResources])
def test_a_step_that_hung_or_ran_out_of_memory_is_the_policys_unless_the_caller_says_otherwise(
    borrowed: Callable[[], Borrowed], error: type[EnvTorchError]
) -> None:
    played: Counter[str] = Counter()

    def exceed(env: EchoEnv, item: str) -> str:
        played[item] += 1
        if played[item] == 1:
            raise error("too much")
        return "won"

    with EnvPool(EchoEnv, borrowed, replicas=1) as pool:
        [scored] = pool.run(exceed, ["policy"])
        [again] = pool.run(exceed, ["caller"], retry_on=(error,))
    assert isinstance(scored, Failed)
    assert (type(scored.error), played["policy"]) == (error, 1)
    assert isinstance(again, Finished)
    assert [type(lost) for lost in again.lost] == [error]


def test_a_call_that_timed_out_because_of_its_server_is_the_infrastructures() -> None:
    assert is_infrastructure(TimedOut("late", is_connected=False))
    assert is_infrastructure(TimedOut("the server kept no deadline", is_connected=True, is_server_late=True))
    assert not is_infrastructure(TimedOut("late", is_connected=True, is_server_late=False))
    assert not is_infrastructure(TimedOut("the server's deadline passed", usable=True))


def test_when_nothing_can_be_started_everybody_is_told_why(made: list[Borrowed]) -> None:
    pool = EnvPool(EchoEnv, lambda: Absent("", made), replicas=2, give_up_after=2)
    with pool, pytest.raises(EngineUnavailable, match="no engine today"), pool.session():
        pass
    assert len(made) == 4


def test_items_are_taken_only_when_there_is_room(borrowed: Callable[[], Borrowed]) -> None:
    taken: list[int] = []
    gate = threading.Event()

    def items() -> Iterator[int]:
        for item in range(10):
            taken.append(item)
            yield item

    def hold(env: EchoEnv, item: int) -> int:
        gate.wait()
        return item

    with (
        EnvPool(EchoEnv, borrowed, replicas=1, sessions_per_replica=2) as pool,
        ThreadPoolExecutor(1) as threads,
    ):
        running = threads.submit(lambda: list(pool.run(hold, items())))
        eventually(lambda: pool.status().busy == 2, "two are played")
        assert len(taken) == 2
        gate.set()
        assert len(running.result()) == 10


@pytest.mark.parametrize("options", [{"replicas": 0}, {"sessions_per_replica": -1}, {"replica": 3}])
def test_impossible_pools_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        EnvPool(EchoEnv, "process", ECHO, **options)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replicas_are_killed_under_load_and_no_episode_is_lost() -> None:
    """Four servers; whenever all are ready, one is killed: six times, while episodes go on."""
    providers: list[ProcessProvider] = []

    def make() -> ProcessProvider:
        providers.append(ProcessProvider())
        return providers[-1]

    kills, total = 6, 0
    enough = threading.Event()

    def items() -> Iterator[int]:
        nonlocal total
        while not enough.is_set():
            total += 1
            yield total

    def kill(pool: EnvPool[EchoEnv]) -> None:
        for number in range(kills):
            eventually(lambda: pool.status().ready == 4, "all four are ready", 120.0)
            victim = next(p for p in providers[number:] if p.status().phase is Phase.RUNNING)
            server: Any = victim._server
            server._process.kill()
            eventually(lambda n=number: pool.status().replaced > n, "the death is noticed", 120.0)  # type: ignore[misc]
        enough.set()

    with EnvPool(EchoEnv, make, ECHO, replicas=4, sessions_per_replica=2, check_every_s=0.5) as pool:
        with ThreadPoolExecutor(1) as threads:
            killing = threads.submit(kill, pool)
            outcomes = list(pool.run(play, items(), attempts=5))
            killing.result()
        assert pool.status().replaced == kills
    assert Counter(o.item for o in outcomes) == Counter(range(1, total + 1))
    failed = [o for o in outcomes if isinstance(o, Failed)]
    assert not failed, failed[:3]
    assert all(provider.status().phase is Phase.ABSENT for provider in providers)
