"""Two hundred episodes on servers that are killed every three seconds, all recovered by replay."""

import asyncio
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from envtorch.client.client_options import Wire
from envtorch.errors import ConnectFailed, EnvTorchError, SessionLost
from tests.chaos.test_soak import show
from tests.recovery.dice import WILD_STEP, DiceEnv, Roll, rolls_of
from tests.recovery.servers import Killable, sessions_in, start_dice

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

EPISODES = 200
STEPS = 50
KILL_EVERY_S = 3.0
WIRES: tuple[Wire, ...] = ("json", "msgpack")


class Fleet:
    """Three addresses whose servers are killed in turn, and started again on the same port."""

    def __init__(self, log: Path, **env_vars: str) -> None:
        self._log, self._env_vars = log, env_vars
        self.servers: list[Killable] = [self._start() for _ in range(3)]
        self.urls = [server.url for server in self.servers]
        self.kills = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._strike)

    def _start(self, port: int | None = None) -> Killable:
        return start_dice(self._log, port=port, env_vars=self._env_vars)

    def _strike(self) -> None:
        dice = random.Random(3)
        while not self._ending.wait(KILL_EVERY_S):
            number = dice.randrange(len(self.servers))
            old = self.servers[number]
            old.kill()
            old.close()
            self.kills += 1
            self.servers[number] = self._start(int(old.url.rsplit(":", 1)[1]))

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for server in self.servers:
            server.close()


async def play(fleet: Fleet, seed: int, pace_s: float) -> tuple[list[list[int]], float]:
    """What an episode saw at each step, and the longest that one took."""
    seen: list[list[int]] = []
    longest_s = 0.0
    wire = WIRES[seed % 2]
    elsewhere = fleet.urls
    while True:  # opening is the caller's to try again: no episode has begun
        try:
            env = DiceEnv.aio(fleet.urls[seed % 3], recover="replay", elsewhere=elsewhere, wire=wire)
            await env.connect()
            break
        except (ConnectFailed, SessionLost):
            await asyncio.sleep(0.2)
    async with env:
        await env.reset(seed=seed, episode_id=str(seed))
        for _ in range(STEPS):
            began = time.monotonic()
            seen.append((await env.step(Roll())).observation.rolls)
            longest_s = max(longest_s, time.monotonic() - began)
            await asyncio.sleep(pace_s)
    return seen, longest_s


def test_every_episode_ends_as_it_would_have_without_the_kills(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pace_s = min(request.config.getoption("--chaos-seconds"), 120.0) / STEPS
    log = tmp_path / "log"
    began = time.monotonic()

    async def run(fleet: Fleet) -> list[tuple[list[list[int]], float]]:
        return await asyncio.gather(*(play(fleet, seed, pace_s) for seed in range(EPISODES)))

    with Fleet(log) as fleet:
        played = asyncio.run(run(fleet))
    sessions = sessions_in(log)
    replayed = sum(map(len, sessions.values())) - EPISODES * STEPS
    show(
        f"{EPISODES} episodes of {STEPS} steps, a server killed every {KILL_EVERY_S:g} s",
        {
            "seconds": round(time.monotonic() - began),
            "kills": fleet.kills,
            "episodes finished": len(played),
            "sessions": len(sessions),
            "steps that were played again": replayed,
            "longest step, s": round(max(longest_s for _, longest_s in played), 1),
        },
    )
    assert fleet.kills > 0
    for seed, (seen, _) in enumerate(played):
        assert seen == [rolls_of(seed, n) for n in range(1, STEPS + 1)], f"episode {seed}"
    for steps in sessions.values():
        assert max(Counter(steps).values()) == 1, "no session ran a step twice"
        assert steps == [(steps[0][0], n) for n in range(1, len(steps) + 1)], "in order, none left out"
    finished = Counter(steps[0][0] for steps in sessions.values() if len(steps) == STEPS)
    assert len(finished) == EPISODES, "each episode has a session that ran all of its steps"


def test_a_planted_nondeterminism_is_found_at_its_step(tmp_path: Path) -> None:
    wild = 7

    async def run(fleet: Fleet) -> list[BaseException | tuple[list[list[int]], float]]:
        playing = (play(fleet, seed, 0.3) for seed in range(60))
        return await asyncio.gather(*playing, return_exceptions=True)

    with Fleet(tmp_path / "log", **{WILD_STEP: str(wild)}) as fleet:
        outcomes = asyncio.run(run(fleet))
    found = [error for error in outcomes if isinstance(error, EnvTorchError)]
    assert found, "some episode was on a server that was killed"
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, SessionLost)
            assert outcome.details == {"step": wild}, outcome
