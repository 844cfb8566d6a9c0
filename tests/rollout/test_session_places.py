"""Rollouts on what starts servers: a provider, a pool whose servers die."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envtorch.envs.echo_env import EchoEnv
from envtorch.errors import ConfigurationError
from envtorch.pool import AsyncEnvPool, EnvPool
from envtorch.providers import ProcessProvider
from envtorch.rollout import Completion, Ending, Prompt, Rollouts, Trajectory
from envtorch.rollout.session_places import AddressPlaces
from tests.support import eventually

APP = "envtorch.envs.echo_env.app:app"


async def policy(prompts: Any) -> list[Completion]:
    return [Completion('{"message": "hello"}') for _ in prompts]


async def play(where: Any, tasks: int = 2, size: int = 2, policy: Any = policy) -> list[Trajectory]:
    async with Rollouts(EchoEnv, where, policy, max_turns=2, concurrency=8) as rollouts:
        return [member async for group in rollouts.groups(range(tasks), size=size) for member in group]


def test_a_provider_whose_server_runs_is_an_address() -> None:
    with ProcessProvider() as provider:
        with pytest.raises(ConfigurationError, match="runs no server: start it first"):
            Rollouts(EchoEnv, provider, policy)
        provider.wait_for_ready(provider.start_container(APP))
        played = asyncio.run(play(provider))
    assert {trajectory.ending for trajectory in played} == {Ending.MAX_TURNS}


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition, "the pool has noticed")


def test_a_blocking_pool_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="AsyncEnvPool"):
        Rollouts(EchoEnv, EnvPool(EchoEnv, "process", APP), policy)  # type: ignore[arg-type]


def test_a_pool_replaces_the_server_that_was_killed_and_no_rollout_is_lost() -> None:
    started: list[ProcessProvider] = []

    def provider() -> ProcessProvider:
        started.append(ProcessProvider())
        return started[-1]

    async def run() -> list[Trajectory]:
        calls = 0
        pool = AsyncEnvPool(EchoEnv.aio, provider, APP, replicas=2, sessions_per_replica=4)
        async with pool:

            async def killing(prompts: list[Prompt]) -> list[Completion]:
                nonlocal calls
                calls += 1
                if calls == 2:
                    await until(lambda: pool.status().ready == 2)
                    server: Any = started[0]._server
                    server._process.kill()
                    await until(lambda: pool.status().replaced == 1)
                return await policy(prompts)

            return await play(pool, tasks=8, policy=killing)

    played = asyncio.run(run())
    assert {trajectory.ending for trajectory in played} == {Ending.MAX_TURNS}
    assert len(played) == 16
    assert len(started) > 2, "another server was started in its place"


@pytest.mark.parametrize("share", ["fork", "reset"])
def test_a_killed_server_loses_no_member_of_a_group_while_another_lives(share: Any) -> None:
    """Killed at another moment in each round: the address refuses connections from then on."""
    with ProcessProvider() as living:
        living.wait_for_ready(living.start_container(APP))
        for call in (1, 2, 3, 4):
            with ProcessProvider() as doomed:
                doomed.wait_for_ready(doomed.start_container(APP))
                played = asyncio.run(_played_while_one_dies(doomed, living, call, share))
            assert [str(member.ending) for member in played] == ["max_turns"] * 24, (
                call,
                [(member.blame, member.lost) for member in played if member.reward is None],
            )
            assert any(member.lost for member in played), "the server was killed too late to matter"


async def _played_while_one_dies(
    doomed: ProcessProvider, living: ProcessProvider, call: int, share: Any
) -> list[Trajectory]:
    calls = 0
    server: Any = doomed._server

    async def killing(prompts: Sequence[Prompt]) -> list[Completion]:
        nonlocal calls
        calls += 1
        if calls == call:
            server._process.kill()
        return await policy(prompts)

    options = {"wait_s": 60.0, "reconnect_s": 1.0, "connect_timeout_s": 1.0}
    rollouts = Rollouts(
        EchoEnv, [doomed, living], killing, max_turns=6, concurrency=16, share=share, client_options=options
    )
    async with rollouts:
        return [member async for group in rollouts.groups(range(6), size=4) for member in group]


def test_an_address_that_refuses_is_avoided_and_a_lost_attempt_goes_elsewhere() -> None:
    async def opened(places: AddressPlaces, number: int, lost_at: list[str]) -> str:
        return (await places.open(number, 0, lost_at)).base_url

    async def check() -> None:
        a, b, c = (f"http://127.0.0.1:{port}" for port in (1, 2, 3))
        places = AddressPlaces([a, b, c], EchoEnv, {})
        assert [await opened(places, number, []) for number in range(4)] == [a, b, c, a], "in turn"
        assert await opened(places, 0, [a]) == b
        assert await opened(places, 0, [a, b]) == c
        assert await opened(places, 0, [a, b, c]) == a
        assert await opened(places, 3, [a, b, c, a]) == b
        places.avoid(a)
        assert [await opened(places, number, []) for number in range(3)] == [b, b, c]
        assert await opened(places, 0, [b, c]) == b, "not where nothing is taken"
        places.avoid(b)
        places.avoid(c)
        assert await opened(places, 0, []) == a, "where every address refuses, each is tried"

    asyncio.run(check())
