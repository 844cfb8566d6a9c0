"""Rollouts whose drivers are actors on the nodes of a Ray cluster: where they run, and what is told when
they die, cannot be started, or are interrupted."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envtorch.client import AsyncEnvClient
from envtorch.errors import ConfigurationError, ProviderFailed
from envtorch.pool import AsyncEnvPool
from envtorch.rollout import (
    ActorPolicy,
    Completion,
    Ending,
    Prompt,
    Rollouts,
    RolloutSummary,
    Trajectory,
    TrajectoryFile,
)
from envtorch.types import State
from tests.cluster.nodes import Nodes
from tests.cluster.test_ray import MARK, ROOT, require_an_end
from tests.recovery.dice import DiceEnv, Roll, Rolled, rolls_of
from tests.recovery.servers import DICE
from tests.support import PATIENCE_S, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

TURNS = 12
Client = AsyncEnvClient[Roll, Rolled, State]


def pool_of(mark: str, recover: Any = None) -> AsyncEnvPool[Client]:
    start = {"resources": {"server": 1}, "directory": str(ROOT), "env_vars": {MARK: mark}}
    return AsyncEnvPool(
        DiceEnv.aio, "ray", DICE, replicas=3, sessions_per_replica=64, start=start, recover=recover
    )


async def is_full(pool: AsyncEnvPool[Client]) -> None:
    await asyncio.to_thread(eventually, lambda: pool.status().ready == 3, "three servers are ready")


async def sixes(prompts: Sequence[Prompt]) -> list[Completion]:
    return [Completion('{"sides": 6}') for _ in prompts]


async def hosts(prompts: Sequence[Prompt]) -> list[Completion]:
    """Says on which node it runs: the last number of its address."""
    import ray

    node = str(ray.util.get_node_ip_address())
    return [Completion(f'{{"sides": {node.rsplit(".", 1)[-1]}}}') for _ in prompts]


class Model:
    """What an actor with a model on a GPU would be."""

    def complete(self, prompts: Sequence[Prompt]) -> list[Completion]:
        return [Completion('{"sides": 6}', version=4) for _ in prompts]


def story(trajectory: Trajectory) -> tuple[Any, ...]:
    return (trajectory.task.id, trajectory.member, trajectory.messages, trajectory.reward, trajectory.ending)


async def played_by(rollouts: Rollouts, tasks: Any, **options: Any) -> list[Trajectory]:
    return [one async for group in rollouts.groups(tasks, size=2, **options) for one in group]


def test_drivers_run_beside_their_servers_and_give_what_one_process_gives(
    nodes: Nodes, tmp_path: Path
) -> None:
    import ray

    mark = secrets.token_hex(16)
    record = TrajectoryFile(tmp_path / "rollouts.jsonl")

    async def run() -> None:
        async with pool_of(mark) as pool:
            await is_full(pool)
            async with Rollouts(DiceEnv, pool, sixes, max_turns=TURNS) as rollouts:
                here = await played_by(rollouts, range(12))
            async with Rollouts(DiceEnv, pool, sixes, max_turns=TURNS, on="ray") as rollouts:
                there = await played_by(rollouts, range(12), record=record)
                merged = RolloutSummary.of(there, rollouts.batches)
                assert await played_by(rollouts, range(12), record=record) == []
            assert sorted(map(story, there), key=repr) == sorted(map(story, here), key=repr)
            assert len(record) == 12
            summary = RolloutSummary.of(here)
            assert (merged.count, merged.causes, merged.turns_mean) == (24, summary.causes, TURNS)
            assert merged.batch_mean is not None
            async with Rollouts(DiceEnv, pool, hosts, max_turns=1, on="ray") as rollouts:
                told = {one.messages[-2]["content"] for one in await played_by(rollouts, range(24))}
            assert told == {f'{{"sides": {host.rsplit(".", 1)[-1]}}}' for host in nodes.hosts}
            model = ray.remote(Model).options(num_cpus=0).remote()
            async with Rollouts(DiceEnv, pool, ActorPolicy(model), max_turns=2, on="ray") as rollouts:
                assert (await rollouts.run(7)).ending is Ending.MAX_TURNS
            ray.kill(model)

    asyncio.run(run())
    require_an_end(nodes, mark)


class Marked:
    """A policy that takes its time and leaves the ids of the processes it runs in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        (self.folder / str(os.getpid())).touch()
        await asyncio.sleep(0.2)
        return [Completion('{"sides": 6}') for _ in prompts]


def test_a_driver_and_a_node_are_killed_and_every_episode_is_played(nodes: Nodes, tmp_path: Path) -> None:
    mark = secrets.token_hex(16)
    results: list[Trajectory] = []

    async def run() -> None:
        async with pool_of(mark) as pool:
            await is_full(pool)
            made = Rollouts(
                DiceEnv, pool, Marked(tmp_path), max_turns=TURNS, concurrency=60, attempts=5, on="ray"
            )
            async with made as rollouts:
                results.extend(await played_by(rollouts, range(60)))

    playing = threading.Thread(target=lambda: asyncio.run(run()))
    playing.start()
    eventually(lambda: len(list(tmp_path.iterdir())) >= 3, "three drivers play")
    os.kill(int(next(tmp_path.iterdir()).name), signal.SIGKILL)
    time.sleep(1.0)
    nodes.kill(nodes.hosts[0])
    nodes.add()
    playing.join()
    require_an_end(nodes, mark)
    lost = Counter(type(error).__name__ for one in results for error in one.lost)
    print(f"\n{len(results)} episodes on Ray, a driver and a node killed: attempts lost {dict(lost)}")
    assert len(results) == 120
    assert {one.ending for one in results} == {Ending.MAX_TURNS}
    for one in results:
        assert f"rolls: {rolls_of(one.task.options['seed'], TURNS)}" in one.messages[-1]["content"]
    assert "ProviderFailed" in lost, "the driver's death is told in the trajectories"


async def deadly(prompts: Sequence[Prompt]) -> list[Completion]:
    os._exit(1)


async def broken(prompts: Sequence[Prompt]) -> list[Completion]:
    raise ZeroDivisionError("the model is broken")


def test_what_goes_wrong_is_told_in_a_sentence_and_leaves_nothing(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from envtorch.providers import RayWorkers

    mark = secrets.token_hex(16)
    (tmp_path / "only_here.py").write_text("async def policy(prompts): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    lock = threading.Lock()

    async def locked(prompts: Sequence[Prompt]) -> list[Completion]:
        with lock:
            return []

    async def run() -> None:
        async with pool_of(mark) as pool:
            await is_full(pool)
            with pytest.raises(ConfigurationError, match=r"the policy cannot be sent .*lock.* OpenAIPolicy"):
                Rollouts(DiceEnv, pool, locked, on="ray")
            with pytest.raises(ConfigurationError, match="did you mean 'cpus'"):
                RayWorkers(cpu=1)
            async with Rollouts(DiceEnv, pool, only_here.policy, on="ray") as rollouts:
                with pytest.raises(ConfigurationError, match=r"No module named 'only_here'.*working_dir"):
                    await rollouts.run(1)
            huge = RayWorkers(cpus=999, placement_timeout_s=3)
            async with Rollouts(DiceEnv, pool, sixes, on=huge) as rollouts:
                with pytest.raises(ConfigurationError, match=r"cannot be placed: no node had room .*999"):
                    await rollouts.run(1)
            async with Rollouts(DiceEnv, pool, broken, on="ray") as rollouts:
                with pytest.raises(ZeroDivisionError, match="the model is broken"):
                    await rollouts.run(1)
            async with Rollouts(DiceEnv, pool, deadly, attempts=2, on="ray") as rollouts:
                lost = await rollouts.run(1)
            assert (lost.ending, lost.reward, len(lost.lost)) == (Ending.LOST, None, 1)
            assert isinstance(lost.blame, ProviderFailed)
            assert "the driver near 127.0.0." in lost.blame.message
            assert pool.status().busy == 0

    asyncio.run(run())
    require_an_end(nodes, mark)


WRONG_ADDRESS = """
from envtorch.rollout import Rollouts
from tests.recovery.dice import DiceEnv

async def policy(prompts): ...

Rollouts(DiceEnv, "http://127.0.0.1:9", policy, on="ray")
"""
INTERRUPTED = """
import asyncio, itertools, signal, sys

from envtorch.rollout import Completion, Rollouts
from tests.cluster.test_ray_rollouts import is_full, pool_of
from tests.recovery.dice import DiceEnv

async def policy(prompts):
    await asyncio.sleep(0.05)
    return [Completion('{"sides": 6}') for _ in prompts]

async def main():
    pool = pool_of(sys.argv[1])
    async with pool, Rollouts(DiceEnv, pool, policy, max_turns=3, on="ray") as rollouts:
        await is_full(pool)
        async for group in rollouts.groups(itertools.count(), size=2):
            print("playing", flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as at a terminal, also where jobs ignore it
asyncio.run(main())
"""


def test_an_address_without_a_cluster_is_told_in_a_sentence() -> None:
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    command = [sys.executable, "-c", WRONG_ADDRESS]
    tried = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    last = tried.stderr.strip().splitlines()[-1]
    assert last.startswith("envtorch.errors.EngineUnavailable: there is no Ray cluster"), tried.stderr[-3000:]
    assert "ray start --head" in last


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_owner_leaves_no_driver_and_no_server(nodes: Nodes, number: signal.Signals) -> None:
    mark = secrets.token_hex(16)
    command = [sys.executable, "-c", INTERRUPTED, mark]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        if owner.stdout.readline() != "playing\n":
            pytest.fail(f"it did not begin: {owner.communicate()[1][-3000:]}")
        owner.send_signal(number)
        told = owner.communicate(timeout=PATIENCE_S)[1]
    if number is signal.SIGINT:
        assert told.strip().splitlines()[-1] == "KeyboardInterrupt", told[-3000:]
    require_an_end(nodes, mark)
