"""Episodes that survive their server, over real sockets and servers that are killed."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envtorch.client import AsyncEnvClient
from envtorch.client.blocking.links import SocketLink
from envtorch.client.client_options import Wire
from envtorch.client.opening import reconnecting
from envtorch.errors import ConfigurationError, SessionLost, TimedOut, Unsupported
from envtorch.pool import AsyncEnvPool, EnvPool, Finished
from envtorch.providers import ProcessProvider
from envtorch.rollout import Completion, Prompt, Rollouts
from envtorch.types import State
from tests.recovery.dice import SHARED, STEP_S, WILD_STEP, DiceEnv, Roll, Rolled, rolls_of
from tests.recovery.servers import DICE, Killable, kill, require_each_step_once, sessions_in
from tests.support import eventually

STEPS = 8
LONG = 30


def test_a_client_goes_on_after_its_server_was_killed(start: Callable[..., Killable], tmp_path: Path) -> None:
    first, second = start(), start()
    with DiceEnv(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=5, episode_id="one")
        for n in range(1, STEPS + 1):
            if n == 4:
                first.kill()
            assert env.step(Roll()).observation.rolls == rolls_of(5, n)
        (copy,) = env.fork()
        with copy:
            assert copy.step(Roll()).observation.rolls == rolls_of(5, STEPS + 1)
        assert env.state().step_count == STEPS
    require_each_step_once(tmp_path / "log")
    assert [len(steps) for steps in sessions_in(tmp_path / "log").values()] == [3, STEPS + 1]


def test_an_episode_that_was_reset_without_a_seed_is_the_same_when_it_is_played_again(
    start: Callable[..., Killable],
) -> None:
    """Nothing that was answered tells which episode it is: the die has not been rolled yet."""
    first, second = start(), start()
    with DiceEnv(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset()
        (copy,) = env.fork()
        with copy:
            rolls = [copy.step(Roll(sides=10**6)).observation.rolls for _ in range(3)][-1]
        first.kill()
        assert [env.step(Roll(sides=10**6)).observation.rolls for _ in range(3)][-1] == rolls


@pytest.mark.parametrize("wire", ["json", "msgpack"])
def test_a_reset_that_takes_no_seed_is_given_none(start: Callable[..., Killable], wire: Wire) -> None:
    server = start("tests.recovery.dice:seedless")
    with DiceEnv(server.url, recover="replay", wire=wire) as env:
        assert env.reset().observation.rolls == []
    with DiceEnv.vector(server.url, 2, recover="replay", wire=wire) as envs:
        assert envs.reset().errors == {}


def test_async_clients_and_their_forks_go_on_after_a_drain_and_a_kill(start: Callable[..., Killable]) -> None:
    first, second, third = start(), start(), start()
    urls = [first.url, second.url, third.url]

    async def play(seed: int) -> None:
        async with DiceEnv.aio(first.url, recover="replay", elsewhere=urls) as env:
            await env.reset(seed=seed, episode_id=str(seed))
            await env.step(Roll())
            copies = await env.fork(2)
            await moved.wait()
            for n in (2, 3):
                for client in (env, *copies):
                    assert (await client.step(Roll())).observation.rolls == rolls_of(seed, n)
            for client in copies:
                await client.close()

    async def run() -> None:
        playing = [asyncio.create_task(play(seed)) for seed in range(5)]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(first.close)  # SIGTERM: it drains
        moved.set()
        await asyncio.sleep(0.05)
        await asyncio.to_thread(second.kill)
        await asyncio.gather(*playing)

    moved = asyncio.Event()
    asyncio.run(run())


def test_a_nondeterministic_step_is_found_and_the_session_is_lost(start: Callable[..., Killable]) -> None:
    first, second = start(**{WILD_STEP: "3"}), start(**{WILD_STEP: "3"})
    with DiceEnv(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=5)
        for _ in range(5):
            env.step(Roll())
        first.kill()
        with pytest.raises(SessionLost, match="step 3 was answered differently") as caught:
            env.step(Roll())
        assert caught.value.details == {"step": 3}
        assert env.reset(seed=6).observation.rolls == []
        assert env.step(Roll()).observation.rolls == rolls_of(6, 1)


def test_a_call_with_a_deadline_stops_in_the_middle_of_a_recovery_and_the_next_goes_on(
    start: Callable[..., Killable], tmp_path: Path
) -> None:
    first, second = start(), start(**{STEP_S: "0.2"})
    with DiceEnv(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=5, episode_id="one")
        for _ in range(STEPS):
            env.step(Roll())
        first.kill()
        with pytest.raises(TimedOut, match="was not run within") as caught:
            env.step(Roll(), timeout_s=0.5)
        assert caught.value.details["is_recovering"] is True
        assert env.step(Roll()).observation.rolls == rolls_of(5, STEPS + 1)
        assert env.state().step_count == STEPS + 1
    require_each_step_once(tmp_path / "log")
    assert [len(steps) for steps in sessions_in(tmp_path / "log").values()] == [STEPS, STEPS + 1]


def test_a_task_cancelled_in_the_middle_of_a_recovery_leaves_it_to_the_next_call(
    start: Callable[..., Killable], tmp_path: Path
) -> None:
    first, second = start(), start(**{STEP_S: "0.2"})

    async def run() -> None:
        async with DiceEnv.aio(first.url, recover="replay", elsewhere=[second.url]) as env:
            await env.reset(seed=5, episode_id="one")
            for _ in range(STEPS):
                await env.step(Roll())
            await asyncio.to_thread(first.kill)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await env.step(Roll())
            assert (await env.step(Roll())).observation.rolls == rolls_of(5, STEPS + 1)

    asyncio.run(run())
    require_each_step_once(tmp_path / "log")
    assert [len(steps) for steps in sessions_in(tmp_path / "log").values()] == [STEPS, STEPS + 1]


def test_a_count_that_is_kept_outside_of_the_session_is_found(
    start: Callable[..., Killable], tmp_path: Path
) -> None:
    shared = {SHARED: str(tmp_path / "shared")}
    first, second = start(**shared), start(**shared)
    with DiceEnv(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=5)
        env.step(Roll())
        first.kill()
        with pytest.raises(SessionLost, match="step 1 was answered differently"):
            env.step(Roll())


def test_a_server_of_another_environment_is_told_from_the_same_one(start: Callable[..., Killable]) -> None:
    first, other = start(), start("envtorch.envs.echo_env.app:app")
    with DiceEnv(first.url, recover="replay", elsewhere=[other.url]) as env:
        env.reset(seed=5)
        env.step(Roll())
        first.kill()
        with pytest.raises(SessionLost, match=f"at {other.url}, the reset was answered differently"):
            env.step(Roll())
        with pytest.raises(SessionLost, match="another version of it, is served there"):
            env.state()


def test_a_session_that_another_client_has_taken_is_not_played_again(
    start: Callable[..., Killable], tmp_path: Path
) -> None:
    first, second = start(), start()
    with DiceEnv(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=5, episode_id="one")
        env.step(Roll())
        link = env._link
        assert isinstance(link, SocketLink)
        other = link._copy(token_of(link))
        other.attach()
        with pytest.raises(SessionLost, match="another client has attached"):
            env.step(Roll())
        other.close()
    assert list(sessions_in(tmp_path / "log").values()) == [[("one", 1)]]


def token_of(link: SocketLink) -> str:
    session = reconnecting(link._session)
    assert session is not None
    return session.channels._channels[0].token


def test_recovery_is_refused_where_it_cannot_hold(start: Callable[..., Killable]) -> None:
    server = start("tests.recovery.dice:unrepeatable")
    with pytest.raises(Unsupported, match="DETERMINISTIC = False"):
        DiceEnv(server.url, recover="replay").connect()
    with pytest.raises(Unsupported, match="DETERMINISTIC = False"):
        DiceEnv.vector(server.url, 2, recover="replay")
    with pytest.raises(ConfigurationError, match="recover is 'replay' or None"):
        DiceEnv(server.url, recover="reply")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="set recover='replay' too"):
        DiceEnv(server.url, elsewhere=[server.url])
    with pytest.raises(ConfigurationError, match="a list of addresses"):
        DiceEnv(server.url, recover="replay", elsewhere=server.url)


class Made(ProcessProvider):
    """A process provider that says what it has made."""

    all: list["Made"]

    def __init__(self) -> None:
        super().__init__()
        type(self).all.append(self)


def test_episodes_in_a_pool_go_on_when_a_replica_is_killed() -> None:
    class Counted(Made):
        all: list[Made] = []

    killed: list[int] = []

    def play(env: DiceEnv, seed: int) -> list[int]:
        env.reset(seed=seed)
        for n in range(STEPS):
            if seed == 3 and n == 4 and not killed:
                killed.append(seed)
                kill(Counted.all[0])
            result = env.step(Roll())
        return result.observation.rolls

    options: dict[str, Any] = {"replicas": 2, "sessions_per_replica": 3, "check_every_s": 0.1}
    with EnvPool(DiceEnv, Counted, DICE, recover="replay", **options) as pool:
        eventually(lambda: pool.status().ready == 2, "both are ready")
        outcomes = list(pool.run(play, range(20), attempts=1))
        eventually(lambda: pool.status().busy == 0, "every place was given back")
    assert [outcome for outcome in outcomes if not isinstance(outcome, Finished)] == []
    assert {o.item: o.value for o in outcomes if isinstance(o, Finished)} == {
        seed: rolls_of(seed, STEPS) for seed in range(20)
    }


def test_the_async_pool_recovers_forks_too() -> None:
    class Counted(Made):
        all: list[Made] = []

    async def play(env: AsyncEnvClient[Roll, Rolled, State], seed: int) -> list[list[int]]:
        await env.reset(seed=seed)
        await env.step(Roll())
        copies = await env.fork(1)
        if seed == 0:
            await asyncio.to_thread(kill, Counted.all[0])
        results = [await client.step(Roll()) for client in (env, *copies)]
        await copies[0].close()
        return [result.observation.rolls for result in results]

    async def run() -> None:
        options: dict[str, Any] = {"replicas": 2, "sessions_per_replica": 4, "check_every_s": 0.1}
        async with AsyncEnvPool(DiceEnv.aio, Counted, DICE, recover="replay", **options) as pool:
            await asyncio.to_thread(eventually, lambda: pool.status().ready == 2, "both are ready")
            outcomes = [outcome async for outcome in pool.run(play, range(8), attempts=1)]
            assert {o.item: o.value for o in outcomes if isinstance(o, Finished)} == {
                seed: [rolls_of(seed, 2)] * 2 for seed in range(8)
            }
            assert pool.status().busy == 0

    asyncio.run(run())


def test_rollouts_go_on_when_a_server_is_killed(start: Callable[..., Killable]) -> None:
    first, second = start(), start()
    calls = 0

    async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
        nonlocal calls
        calls += 1
        if calls == 3:
            await asyncio.to_thread(first.kill)
        return [Completion('{"sides": 6}') for _ in prompts]

    async def run() -> None:
        where = [first.url, second.url]
        async with Rollouts(DiceEnv, where, policy, max_turns=6, attempts=1, recover="replay") as rollouts:
            groups = [group async for group in rollouts.groups([{"seed": s} for s in range(6)], size=2)]
        assert sorted(group.task.options["seed"] for group in groups) == list(range(6))
        for group in groups:
            for trajectory in group:
                assert trajectory.ending.value == "max_turns", trajectory.blame
                assert str(rolls_of(group.task.options["seed"], 6)[-1]) in str(trajectory.messages[-1])

    asyncio.run(run())


def test_the_limit_of_a_rollouts_steps_is_for_the_actions_and_not_for_a_recovery(
    start: Callable[..., Killable],
) -> None:
    first, second = start(), start(**{STEP_S: "0.1"})
    calls = 0

    async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
        nonlocal calls
        calls += 1
        if calls == LONG:
            await asyncio.to_thread(first.kill)
        return [Completion('{"sides": 6}') for _ in prompts]

    async def run() -> None:
        options: dict[str, Any] = {"max_turns": LONG, "attempts": 1, "step_timeout_s": 2.0}
        async with Rollouts(
            DiceEnv, [first.url, second.url], policy, recover="replay", **options
        ) as rollouts:
            (group,) = [group async for group in rollouts.groups([{"seed": 5}], size=1)]
        assert [trajectory.ending.value for trajectory in group] == ["max_turns"]

    asyncio.run(run())
