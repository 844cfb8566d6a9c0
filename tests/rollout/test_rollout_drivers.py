"""Rollouts whose episodes are played by drivers elsewhere: the same results, and what happens when one dies.

Drivers run in this process here, behind workers that pickle all that is sent; on a real cluster they are
tested by `make test-ray`.
"""

import asyncio
import importlib.util
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from envtorch.errors import ConfigurationError, MissingExtra, ProviderFailed
from envtorch.pool import AsyncEnvPool
from envtorch.rollout import (
    ActorPolicy,
    Completion,
    Ending,
    OpenAIPolicy,
    Prompt,
    Rollouts,
    RolloutSummary,
    Trajectory,
    TrajectoryFile,
    TrajectoryGroup,
    Transcript,
)
from tests.recovery.dice import DiceEnv, rolls_of
from tests.recovery.servers import DICE
from tests.rollout.dials import LETTERS, DialEnv, Player, dials, scattered, upwards
from tests.rollout.local_workers import LocalWorkers
from tests.support import Running, eventually


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Running]]:
    with dials() as one, dials() as another:
        yield [one, another]


PLAYER = Player(scattered)


def story(trajectory: Trajectory) -> tuple[Any, ...]:
    return (trajectory.member, trajectory.messages, trajectory.tokens, trajectory.reward, trajectory.ending)


def play(
    servers: list[Running], on: Any, tasks: Any = range(12), policy: Any = PLAYER, **options: Any
) -> tuple[list[TrajectoryGroup], RolloutSummary]:
    async def run() -> tuple[list[TrajectoryGroup], RolloutSummary]:
        where = [server.url for server in servers]
        made = {"template": LETTERS, "concurrency": 16, **options}
        async with Rollouts(DialEnv, where, policy, on=on, **made) as rollouts:
            groups = [group async for group in rollouts.groups(tasks, size=4)]
            return groups, RolloutSummary.of([one for group in groups for one in group], rollouts.batches)

    played, summary = asyncio.run(run())
    eventually(lambda: not any(server.sessions.active for server in servers), "every session is closed")
    return sorted(played, key=lambda group: group.task.options["seed"]), summary


def test_drivers_give_the_trajectories_that_one_process_gives(servers: list[Running]) -> None:
    workers = LocalWorkers()
    here, summary = play(servers, None)
    there, merged = play(servers, workers)
    assert [[story(one) for one in group] for group in there] == [
        [story(one) for one in group] for group in here
    ]
    assert len(workers.started) == 2, "one for each server"
    assert workers.living == []
    assert merged.causes == summary.causes
    assert merged.batch_largest is not None
    assert (merged.count, merged.scored, merged.reward_mean, merged.tokens_said) == (
        summary.count,
        summary.scored,
        summary.reward_mean,
        summary.tokens_said,
    )


def two_turns(talk: Transcript) -> bool:
    return len(talk.turns) == 2


def test_a_tree_is_grown_by_a_driver(servers: list[Running]) -> None:
    async def run() -> int:
        where = [server.url for server in servers]
        async with Rollouts(DialEnv, where, PLAYER, template=LETTERS, on=LocalWorkers()) as rollouts:
            tree = await rollouts.tree(5, width=3, branch_when=two_turns, max_leaves=3)
            return len(tree.trajectories)

    assert asyncio.run(run()) == 3


class Deadly:
    """A policy that lets workers die, some calls in."""

    workers: LocalWorkers
    deaths = 0
    calls_made = 0

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        Deadly.calls_made += 1
        if Deadly.deaths > 0 and Deadly.calls_made > 3:
            Deadly.deaths -= 1
            Deadly.workers.living[0].kill()
        return await PLAYER(prompts)


def test_what_a_dead_driver_had_not_finished_is_played_by_another(servers: list[Running]) -> None:
    here, _ = play(servers, None)
    Deadly.workers, Deadly.deaths, Deadly.calls_made = LocalWorkers(), 2, 0
    there, summary = play(servers, Deadly.workers, policy=Deadly(), attempts=4)
    assert [[story(one) for one in group] for group in there] == [
        [story(one) for one in group] for group in here
    ]
    assert len(Deadly.workers.started) == 4, "two died, and have successors"
    lost = [error for group in there for one in group for error in one.lost]
    assert lost
    assert {type(error) for error in lost} == {ProviderFailed}
    assert summary.attempts_lost == len(lost)


def test_an_order_whose_drivers_all_die_is_lost_without_a_reward(servers: list[Running]) -> None:
    Deadly.workers, Deadly.deaths, Deadly.calls_made = LocalWorkers(), 100, 3
    groups, summary = play(servers, Deadly.workers, [1], policy=Deadly(), attempts=3)
    assert [(one.ending, one.reward, len(one.lost)) for one in groups[0]] == [(Ending.LOST, None, 2)] * 4
    assert isinstance(groups[0][0].blame, ProviderFailed)
    assert summary.causes == {"lost: ProviderFailed": 4}


def test_a_slow_consumer_stops_the_drivers(servers: list[Running]) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for seed in range(10_000):
            taken.append(seed)
            yield seed

    async def run() -> None:
        where = [server.url for server in servers]
        async with Rollouts(DialEnv, where, PLAYER, template=LETTERS, concurrency=16, on=LocalWorkers()) as r:
            groups = r.groups(tasks(), size=4)
            await anext(groups)
            await asyncio.sleep(0.3)
            assert len(taken) <= 5, "as many as there is room for, and the one that was given out"
            await groups.aclose()
        eventually(lambda: not any(server.sessions.active for server in servers), "their sessions are ended")

    asyncio.run(run())


async def broken(prompts: Sequence[Prompt]) -> list[Completion]:
    raise ZeroDivisionError("the model is broken")


def test_what_the_policy_raises_in_a_driver_ends_the_rollouts(servers: list[Running]) -> None:
    workers = LocalWorkers()
    with pytest.raises(ZeroDivisionError, match="the model is broken"):
        play(servers, workers, policy=broken)
    assert workers.living == []


def test_drivers_are_parked_and_go_on_with_new_weights(servers: list[Running]) -> None:
    async def run() -> set[int]:
        where = [server.url for server in servers]
        made = Rollouts(DialEnv, where, Player(upwards), template=LETTERS, on=LocalWorkers())
        async with made as rollouts:
            await rollouts.run(5)
            await rollouts.park()
            playing = asyncio.create_task(rollouts.run(5))
            await asyncio.sleep(0.1)
            assert not playing.done()
            rollouts.resume(version=3)
            assert rollouts.version == 3
            return set((await playing).tokens.versions)

    assert asyncio.run(run()) == {0, 3}


def test_a_record_is_resumed_by_drivers(servers: list[Running], tmp_path: Any) -> None:
    async def run(tasks: Any) -> list[int]:
        where, file = [server.url for server in servers], TrajectoryFile(tmp_path / "rollouts.jsonl")
        async with Rollouts(DialEnv, where, PLAYER, template=LETTERS, on=LocalWorkers()) as rollouts:
            groups = rollouts.groups(tasks, size=2, record=file)
            return [group.task.options["seed"] async for group in groups]

    assert sorted(asyncio.run(run(range(3)))) == [0, 1, 2]
    assert sorted(asyncio.run(run(range(5)))) == [3, 4]
    assert len(list(TrajectoryFile(tmp_path / "rollouts.jsonl"))) == 10


async def rolling(prompts: Sequence[Prompt]) -> list[Completion]:
    await asyncio.sleep(0.05)
    return [Completion('{"sides": 6}') for _ in prompts]


@pytest.mark.parametrize("recover", [None, "replay"])
def test_a_server_of_a_pool_dies_under_drivers(recover: Any) -> None:
    from envtorch.providers import ProcessProvider

    started: list[ProcessProvider] = []

    def provider() -> ProcessProvider:
        started.append(ProcessProvider())
        return started[-1]

    async def run() -> list[Trajectory]:
        pool = AsyncEnvPool(DiceEnv.aio, provider, DICE, replicas=2, sessions_per_replica=8, recover=recover)
        async with pool, Rollouts(DiceEnv, pool, rolling, max_turns=12, on=LocalWorkers()) as rollouts:
            playing = asyncio.create_task(_all(rollouts))
            await asyncio.to_thread(eventually, lambda: pool.status().busy >= 8, "episodes are played")
            await asyncio.to_thread(eventually, lambda: pool.status().ready == 2, "two servers")
            await asyncio.sleep(0.2)
            server: Any = started[0]._server
            server._process.kill()
            played = await playing
            assert pool.status().busy == 0, "every place is given back"
            assert pool.status().replaced >= 1
            return played

    played = asyncio.run(run())
    assert len(played) == 48
    for one in played:
        assert one.ending is Ending.MAX_TURNS
        assert f"rolls: {rolls_of(one.task.options['seed'], 12)}" in one.messages[-1]["content"]
    assert bool(recover) != any(one.lost for one in played)


def test_groups_that_reset_every_member_share_a_pool_with_too_few_places() -> None:
    async def run() -> list[Trajectory]:
        pool = AsyncEnvPool(DiceEnv.aio, "process", DICE, replicas=1, sessions_per_replica=4)
        made: dict[str, Any] = {"max_turns": 2, "concurrency": 64, "share": "reset", "on": LocalWorkers()}
        async with pool, Rollouts(DiceEnv, pool, rolling, **made) as rollouts:
            played = [one async for group in rollouts.groups(range(12), size=4) for one in group]
            assert pool.status().busy == 0, "every place is given back"
            return played

    played = asyncio.run(run())
    assert [one.ending for one in played] == [Ending.MAX_TURNS] * 48
    assert not any(one.lost for one in played)


async def _all(rollouts: Rollouts) -> list[Trajectory]:
    return [one async for group in rollouts.groups(range(24), size=2) for one in group]


def test_another_engine_is_refused_with_what_there_is(servers: list[Running]) -> None:
    with pytest.raises(ConfigurationError, match=r"on is 'ray', or a RayWorkers .* not 'dask'"):
        Rollouts(DialEnv, servers[0].url, PLAYER, on="dask")  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_a_missing_ray_is_told_with_its_extra(servers: list[Running]) -> None:
    with pytest.raises(MissingExtra, match=r"\[ray\]"):
        Rollouts(DialEnv, servers[0].url, PLAYER, on="ray")


def test_a_policy_of_an_endpoint_is_pickled_as_it_was_made() -> None:
    async def run() -> None:
        async with OpenAIPolicy("http://127.0.0.1:9/v1", "m", api_key="k", request={"top_p": 0.5}) as policy:
            copy = pickle.loads(pickle.dumps(policy))
            assert pickle.dumps(copy) == pickle.dumps(policy)
            await copy.close()

    asyncio.run(run())


def test_what_is_no_actor_is_refused_as_a_policy() -> None:
    with pytest.raises(ConfigurationError, match="has no actor method 'complete'"):
        ActorPolicy(object())


WATCHED: list[Running] = []
SEEN: list[int] = []


async def counting(prompts: Sequence[Prompt]) -> list[Completion]:
    SEEN.append(sum(server.sessions.active for server in WATCHED))
    return [Completion(f'{{"number": {upwards(prompt)}}}') for prompt in prompts]


@pytest.mark.parametrize("concurrency", [3, 8])
def test_drivers_together_have_no_more_sessions_open_than_concurrency_says(
    servers: list[Running], concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.WATCHED", servers)
    SEEN.clear()
    options = {"template": None, "concurrency": concurrency, "share": "fork", "policy_calls": 8}
    groups, _ = play(servers, LocalWorkers(), range(4), counting, **options)
    assert {t.ending for group in groups for t in group} == {Ending.DONE}
    assert max(SEEN) <= concurrency
