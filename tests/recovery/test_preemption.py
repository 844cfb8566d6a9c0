"""A server that is told to stop: episodes end in their time, or move to another server, or are told."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from envtorch.errors import ConfigurationError, Draining, EnvTorchError, SessionLost
from envtorch.settings import Settings
from tests import patient
from tests.recovery.dice import LOG, DiceEnv, Roll, rolls_of
from tests.recovery.servers import sessions_in
from tests.support import PATIENCE_S, eventually

LONG_S = 10 * PATIENCE_S
"""A time to finish in that no test waits for."""


class Preemptible:
    """`envtorch serve`, which can be told to stop."""

    def __init__(self, log: Path, *, finish_s: float, workers: int = 1) -> None:
        command = [sys.executable, "-m", "envtorch.cli", "serve", "tests.recovery.dice:app", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--workers", str(workers), "--drain", "5"],
            env={**os.environ, LOG: str(log), "ENVTORCH_FINISH": str(finish_s)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.url = self.process.stderr.readline().split(" on ")[1].split()[0]

    def notice(self) -> None:
        """Tell it to stop, and wait until it says that it will."""
        self.process.send_signal(signal.SIGTERM)
        eventually(lambda: patient.get(self.url + "/ready").status_code == 503, "it takes nothing new")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def is_refused(env: DiceEnv, seed: int) -> bool:
    """Whether the server lets a session begin no other episode."""
    try:
        env.reset(seed=seed)
    except Draining:
        return True
    return False


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack, log: Path, **options: float) -> Preemptible:
    server = Preemptible(log, **options)  # type: ignore[arg-type]
    stack.callback(server.close)
    return server


@pytest.mark.parametrize("workers", [1, 2])
def test_an_episode_that_is_open_at_sigterm_goes_on_and_no_other_begins(
    stack: ExitStack, tmp_path: Path, workers: int
) -> None:
    server = started(stack, tmp_path / "log", finish_s=LONG_S, workers=workers)
    with DiceEnv(server.url) as env, DiceEnv(server.url) as other:
        env.reset(seed=3)
        other.reset(seed=4)
        server.notice()
        eventually(lambda: is_refused(env, 3) and is_refused(other, 4), "every worker was told")
        for n in range(1, 6):
            assert env.step(Roll()).observation.rolls == rolls_of(3, n)
        with pytest.raises(Draining, match="shutting down"):
            env.reset(seed=3)
        with pytest.raises(Draining, match="opens no session"):
            DiceEnv(server.url).connect()
        assert env.step(Roll()).observation.rolls == rolls_of(3, 6), "a refused reset changes nothing"
        (copy,) = other.fork()
        with copy:
            assert copy.step(Roll()).observation.rolls == rolls_of(4, 1)
        assert server.process.poll() is None
    assert server.process.wait(PATIENCE_S) == 0, "the last session has ended: it need not wait for more"


def test_a_session_that_does_not_end_in_time_is_told(stack: ExitStack, tmp_path: Path) -> None:
    server = started(stack, tmp_path / "log", finish_s=0.5)
    with DiceEnv(server.url) as env:
        env.reset(seed=3)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        with pytest.raises((Draining, SessionLost)):  # the second when the word went down with the socket
            env.step(Roll())


def test_a_second_signal_ends_the_wait(stack: ExitStack, tmp_path: Path) -> None:
    server = started(stack, tmp_path / "log", finish_s=LONG_S)
    with DiceEnv(server.url) as env:
        env.reset(seed=3)
        server.notice()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0


def test_sessions_that_recover_move_before_their_server_goes(stack: ExitStack, tmp_path: Path) -> None:
    """The second server takes them all; the first one ends long before its time is over."""
    log = tmp_path / "log"
    first, second = (started(stack, log, finish_s=LONG_S) for _ in range(2))
    waiting = asyncio.Semaphore(0)
    moved = asyncio.Event()

    async def play(seed: int) -> None:
        async with DiceEnv.aio(first.url, recover="replay", elsewhere=[second.url]) as env:
            await env.reset(seed=seed, episode_id=str(seed))
            for n in range(1, 13):
                if n == 5:
                    waiting.release()
                    await moved.wait()
                assert (await env.step(Roll())).observation.rolls == rolls_of(seed, n)

    async def run() -> None:
        playing = [asyncio.create_task(play(seed)) for seed in range(20)]
        for _ in playing:
            await asyncio.wait_for(waiting.acquire(), PATIENCE_S)
        await asyncio.to_thread(first.notice)
        moved.set()
        await asyncio.gather(*playing)

    asyncio.run(run())
    assert first.process.wait(PATIENCE_S) == 0
    ran = [len(steps) for steps in sessions_in(log).values()]
    assert sorted(ran) == [5] * 20 + [12] * 20, "the step that brought the notice is the last one there"


def test_blocking_clients_move_too(stack: ExitStack, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = (started(stack, log, finish_s=LONG_S) for _ in range(2))
    with DiceEnv(first.url, recover="replay", elsewhere=[second.url]) as env:
        env.reset(seed=7)
        env.step(Roll())
        first.notice()
        env.step(Roll())
        assert first.process.poll() is None, "its session has not ended yet"
        assert env.step(Roll()).observation.rolls == rolls_of(7, 3)
        assert first.process.wait(PATIENCE_S) == 0
        assert env.step(Roll()).observation.rolls == rolls_of(7, 4)


@pytest.mark.parametrize("wrong", ["soon", "-1", "inf", "nan"])
def test_a_time_that_cannot_be_meant_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="ENVTORCH_FINISH must be a number of seconds"):
        Settings.from_environ({"ENVTORCH_FINISH": wrong})
    assert Settings.from_environ({"ENVTORCH_FINISH": "90", "ENVTORCH_DRAIN": "1.5"}).drain_s == 1.5


def test_a_vector_moves_when_its_server_refuses_a_reset(stack: ExitStack, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = (started(stack, log, finish_s=LONG_S) for _ in range(2))
    with DiceEnv.vector(first.url, 3, recover="replay", elsewhere=[second.url]) as envs:
        envs.reset(seed=7)
        envs.step([Roll()] * 3)
        first.notice()
        envs.send({0: Roll()})
        outcome = envs.reset({1: {"seed": 20}})[1]
        assert not isinstance(outcome, EnvTorchError)
        assert envs.receive()[0].observation.rolls == rolls_of(7, 2)  # type: ignore[union-attr]
        assert first.process.wait(PATIENCE_S) == 0, "it has no session any more"
        result = envs.step([Roll()] * 3)
        assert [one.observation.rolls for one in result] == [rolls_of(7, 3), rolls_of(20, 1), rolls_of(9, 2)]


def test_a_vector_moves_before_its_server_goes(stack: ExitStack, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = (started(stack, log, finish_s=LONG_S) for _ in range(2))
    with DiceEnv.vector(first.url, 3, recover="replay", elsewhere=[second.url]) as envs:
        envs.reset(seed=7)
        envs.step([Roll()] * 3)
        first.notice()
        envs.step([Roll()] * 3)  # its answer comes with the notice
        result = envs.step([Roll()] * 3)
        assert [one.observation.rolls for one in result] == [rolls_of(7 + place, 3) for place in range(3)]
        assert first.process.wait(PATIENCE_S) == 0, "it has no session any more"
