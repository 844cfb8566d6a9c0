"""A pool that grows and shrinks, over real server processes; and replicas that are told to stop."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.pool import AsyncEnvPool, EnvPool, Finished
from envtorch.providers import ProcessProvider
from envtorch.providers.provider_base import ContainerProvider, Phase, Status
from tests.recovery.dice import DiceEnv, Roll, rolls_of
from tests.support import PATIENCE_S, eventually

ECHO = "envtorch.envs.echo_env.app:app"
QUICK: dict[str, Any] = {"check_every_s": 0.1, "grow_after_s": 0.1, "shrink_after_s": 0.5}


def test_a_pool_grows_while_sessions_are_waited_for_and_shrinks_when_they_have_ended() -> None:
    providers: list[ProcessProvider] = []

    def make() -> ProcessProvider:
        providers.append(ProcessProvider())
        return providers[-1]

    def running() -> int:
        return sum(provider.status().phase is Phase.RUNNING for provider in providers)

    with EnvPool(EchoEnv, make, ECHO, replicas=(1, 3), sessions_per_replica=2, **QUICK) as pool:
        eventually(lambda: pool.status().ready == 1, "the least", PATIENCE_S)
        with ExitStack() as open_sessions, ThreadPoolExecutor(6) as threads:
            asked = [threads.submit(open_sessions.enter_context, pool.session()) for _ in range(6)]
            sessions = [turn.result(PATIENCE_S) for turn in asked]
            assert (pool.status().ready, pool.status().wanted) == (3, 3)
            for env in sessions:
                env.reset()
                assert env.step(EchoAction(message="x")).observation.echoed_message == "x"
        eventually(lambda: pool.status().ready == 1 and running() == 1, "the least again", PATIENCE_S)
        assert pool.status().replaced == 0, "those that left were not found dead"
        with pool.session() as env:
            env.reset()
    assert running() == 0


def test_a_replica_with_a_session_in_use_does_not_leave() -> None:
    options: dict[str, Any] = {"replicas": (1, 3), "sessions_per_replica": 4, **QUICK}
    with EnvPool(EchoEnv, ProcessProvider, ECHO, **options) as pool, ThreadPoolExecutor(9) as threads:
        with ExitStack() as kept:
            with ExitStack() as all_sessions:
                contexts = [pool.session() for _ in range(9)]
                clients = list(threads.map(lambda context: context.__enter__(), contexts))
                by_server = {client._options.base_url: number for number, client in enumerate(clients)}
                assert len(by_server) == 3
                for number, context in enumerate(contexts):
                    stays = number in list(by_server.values())[:2]
                    (kept if stays else all_sessions).push(context)
                clients = [clients[number] for number in list(by_server.values())[:2]]
                for env in clients:
                    env.reset()
                copies = [copy for env in clients for copy in env.fork()]
            eventually(lambda: pool.status().wanted == 1, "one replica would do", PATIENCE_S)
            eventually(lambda: pool.status().ready == 2, "the one without a session leaves", PATIENCE_S)
            with pool.session() as another:
                another.reset()
                for env in (*clients, another):
                    assert env.step(EchoAction(message="here")).observation.echoed_message == "here"
            assert pool.status().ready == 2
        for _ in range(10):  # one of the two replicas is to leave, and still has a copy
            time.sleep(QUICK["check_every_s"])
            assert pool.status().ready == 2
        for copy in copies:
            assert copy.step(EchoAction(message="copy")).observation.echoed_message == "copy"
            copy.close()
        eventually(lambda: pool.status().ready == 1, "the last session there has ended", PATIENCE_S)


class Served(ContainerProvider):
    """`envtorch serve` with a time to finish, as an image runs it."""

    processes: "list[subprocess.Popen[str]]" = []

    def start_container(self, image: str, *args: Any, **options: Any) -> str:
        command = [sys.executable, "-m", "envtorch.cli", "serve", image, "--port", "0", "--finish", "600"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        self.processes.append(self._process)
        assert self._process.stderr is not None
        return self._process.stderr.readline().split(" on ")[1].split()[0]

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None: ...

    def stop_container(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def status(self) -> Status:
        return Status(Phase.RUNNING if self._process.poll() is None else Phase.EXITED)


@pytest.fixture
def processes() -> Iterator["list[subprocess.Popen[str]]"]:
    Served.processes = []
    yield Served.processes
    assert all(process.poll() is not None for process in Served.processes)


def test_a_pool_moves_its_sessions_off_a_replica_that_is_told_to_stop(
    processes: "list[subprocess.Popen[str]]",
) -> None:
    """A spot node's notice. The replica has ten minutes; it ends when its sessions have moved."""

    async def run() -> list[Any]:
        noticed = asyncio.Event()

        async def play(env: Any, seed: int) -> list[int]:
            await env.reset(seed=seed, episode_id=str(seed))
            for n in range(1, 11):
                if n == 4:
                    await noticed.wait()
                rolls: list[int] = (await env.step(Roll())).observation.rolls
            return rolls

        options: dict[str, Any] = {"replicas": 2, "sessions_per_replica": 8, "check_every_s": 0.2}
        image = "tests.recovery.dice:app"
        async with AsyncEnvPool(DiceEnv.aio, Served, image, recover="replay", **options) as pool:
            while pool.status().ready < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            playing = asyncio.create_task(_all(pool.run(play, range(12))))
            while pool.status().busy < 12:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            processes[0].send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            noticed.set()
            outcomes = await playing
            await asyncio.to_thread(processes[0].wait, PATIENCE_S)
            while len(processes) < 3 or pool.status().ready < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return outcomes

    outcomes = asyncio.run(run())
    assert {o.item: o.value for o in outcomes if isinstance(o, Finished)} == {
        seed: rolls_of(seed, 10) for seed in range(12)
    }
    assert all(not o.lost for o in outcomes), "nothing was played again from its beginning"
    assert len(processes) == 3, "a successor was started"


async def _all(outcomes: Any) -> list[Any]:
    return [outcome async for outcome in outcomes]
