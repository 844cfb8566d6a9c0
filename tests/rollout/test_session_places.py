"""Rollouts on what starts servers: a provider, a pool whose servers die."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from envtorch.envs.echo_env import EchoEnv
from envtorch.errors import ConfigurationError
from envtorch.pool import AsyncEnvPool, EnvPool
from envtorch.providers import ProcessProvider
from envtorch.rollout import Completion, Ending, Prompt, Rollouts, Trajectory
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
