"""Servers on a Ray cluster of four nodes: the provider's contract, and sessions whose nodes die."""

import asyncio
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envtorch.client import AsyncEnvClient
from envtorch.errors import ConfigurationError, EnvTorchError, ProviderFailed
from envtorch.pool import AsyncEnvPool, Failed, Finished
from envtorch.pool.outcomes import is_infrastructure
from envtorch.testing import PROVIDER_CHECKS, ProviderCheck
from envtorch.types import State
from tests.cluster.nodes import Nodes
from tests.providers import subjects
from tests.providers.test_conformance import keep
from tests.recovery.dice import DiceEnv, Roll, Rolled, rolls_of
from tests.recovery.servers import DICE
from tests.support import PATIENCE_S, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SESSIONS = 500
STEPS = 20
PACE_S = 4.0
"""So that an episode is longer than three deaths, and three nodes that join."""
KILLS = 3
MARK = "ENVTORCH_TEST_MARK"


@pytest.mark.parametrize("check", PROVIDER_CHECKS, ids=str)
def test_the_provider_keeps_the_contract(nodes: Nodes, check: ProviderCheck) -> None:
    keep(check, subjects.ray())


def test_a_server_that_fits_on_no_node_is_told_with_what_is_free(nodes: Nodes) -> None:
    from envtorch.providers import RayProvider

    with RayProvider() as provider:
        with pytest.raises(ProviderFailed, match=r"no node had room for .*'CPU': 999.*free in the cluster"):
            provider.start_container(DICE, cpus=999, placement_timeout_s=3)
        with pytest.raises(ConfigurationError, match="did you mean 'cpus'"):
            provider.start_container(DICE, cpu=1)
    nodes.require_nothing_left()


BROUGHT_ALONG = """
import os

from envtorch import create_app
from envtorch.envs.echo_env.environment import EchoEnvironment

assert os.environ["LEVEL"] == "7"
app = create_app(EchoEnvironment)
"""
DRIVER = """
import sys

import ray

from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.providers import RayProvider

ray.init(address=sys.argv[1], runtime_env={"working_dir": sys.argv[2]}, log_to_driver=False)
with RayProvider() as provider:
    url = provider.start_container("brought_along:app", runtime_env={"env_vars": {"LEVEL": "7"}})
    provider.wait_for_ready(url, timeout_s=120)
    with EchoEnv(url) as env:
        env.reset()
        print(env.step(EchoAction(message="it was sent to the node")).observation.echoed_message)
"""


def test_the_code_of_the_environment_is_sent_to_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "brought_along.py").write_text(BROUGHT_ALONG)
    driver = [sys.executable, "-c", DRIVER, nodes.address, str(tmp_path)]
    played = subprocess.run(driver, capture_output=True, text=True, check=False)
    assert played.stdout.endswith("it was sent to the node\n"), played.stderr[-2000:]
    nodes.require_nothing_left()


def test_what_ray_refuses_is_told_in_a_sentence(nodes: Nodes, tmp_path: Path) -> None:
    from envtorch.providers import RayProvider

    with (
        RayProvider() as provider,
        pytest.raises(ConfigurationError, match=r"Ray refuses these options: .*ray\.init"),
    ):
        provider.start_container(DICE, runtime_env={"working_dir": str(tmp_path)})


class Ledger:
    """What became of the episodes of one run."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self.hosts: Counter[str] = Counter()
        """On which nodes episodes began."""
        self.kills: list[str] = []
        self.joined: list[str] = []

    @property
    def failed(self) -> list[Failed[int]]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Failed)]


def runs_with(mark: str) -> list[int]:
    """The processes with the mark in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


Client = AsyncEnvClient[Roll, Rolled, State]


class Crowd:
    """Five hundred episodes on three nodes, played on a thread of their own."""

    def __init__(self, nodes: Nodes, mark: str, recover: Any) -> None:
        self.ledger = Ledger()
        self.have_begun = threading.Event()
        self.are_struck = threading.Event()
        self._nodes = nodes
        start = {"resources": {"server": 1}, "directory": str(ROOT), "env_vars": {MARK: mark}}
        self._pool: AsyncEnvPool[Client] = AsyncEnvPool(
            DiceEnv.aio,
            "ray",
            DICE,
            replicas=3,
            sessions_per_replica=SESSIONS,
            start=start,
            recover=recover,
        )

    async def play(self) -> None:
        """All episodes; and then sixty more, when there are three replicas again."""
        async with self._pool as pool:
            await self._until_ready()
            async for outcome in pool.run(self._episode, range(SESSIONS), attempts=1):
                self.ledger.outcomes.append(outcome)
            await asyncio.to_thread(self.are_struck.wait)
            await self._until_ready()
            again = [outcome async for outcome in pool.run(self._short_episode, range(60))]
            assert all(isinstance(outcome, Finished) for outcome in again)

    async def _until_ready(self) -> None:
        await asyncio.to_thread(eventually, lambda: self._pool.status().ready == 3, "three are ready")

    async def _episode(self, env: Client, seed: int) -> list[int]:
        self.ledger.hosts[self._nodes.host_of(env.base_url)] += 1
        await env.reset(seed=seed, episode_id=str(seed))
        self.have_begun.set()
        for _ in range(STEPS):
            result = await env.step(Roll())
            await asyncio.sleep(PACE_S)
        return result.observation.rolls

    async def _short_episode(self, env: Client, seed: int) -> None:
        self.ledger.hosts[self._nodes.host_of(env.base_url)] += 1
        await env.reset(seed=seed)
        await env.step(Roll())


def strike(nodes: Nodes, crowd: Crowd) -> None:
    """Kill a node three times, each time another one, and let a new one join."""
    ledger = crowd.ledger
    assert crowd.have_begun.wait(PATIENCE_S)
    for _ in range(KILLS):
        time.sleep(PACE_S)
        victim = next(host for host in nodes.hosts if host not in ledger.joined)
        ledger.kills.append(victim)
        nodes.kill(victim)
        ledger.joined.append(nodes.add())
    crowd.are_struck.set()


def require_an_end(nodes: Nodes, mark: str) -> None:
    eventually(lambda: not runs_with(mark), "no process of a server is left")
    nodes.require_nothing_left()


@pytest.mark.parametrize("recover", ["replay", None])
def test_five_hundred_sessions_while_a_node_is_killed_three_times(nodes: Nodes, recover: Any) -> None:
    mark = secrets.token_hex(16)
    began = time.monotonic()
    crowd = Crowd(nodes, mark, recover)
    with ThreadPoolExecutor(1) as threads:
        playing = threads.submit(lambda: asyncio.run(crowd.play()))
        try:
            strike(nodes, crowd)
        finally:
            crowd.are_struck.set()
        playing.result()
    ledger = crowd.ledger
    require_an_end(nodes, mark)
    lost = Counter(type(outcome.error).__name__ for outcome in ledger.failed)
    print(
        f"\nrecover={recover!r}: {len(ledger.outcomes)} episodes, {len(ledger.kills)} nodes killed "
        f"({', '.join(ledger.kills)}), lost: {dict(lost) or 'none'}, in {time.monotonic() - began:.0f} s"
    )
    assert len(ledger.outcomes) == SESSIONS
    finished = {o.item: o.value for o in ledger.outcomes if isinstance(o, Finished)}
    assert finished == {seed: rolls_of(seed, STEPS) for seed in finished}, "as without the deaths"
    assert set(ledger.joined) & ledger.hosts.keys(), "a node that joined is used"
    if recover == "replay":
        assert ledger.failed == []
    else:
        assert ledger.failed, "some episode was on a node that was killed"
        for outcome in ledger.failed:
            assert isinstance(outcome.error, EnvTorchError), outcome
            assert is_infrastructure(outcome.error), outcome
