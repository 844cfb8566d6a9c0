"""Two hundred episodes on servers that are killed every three seconds, all recovered by replay."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from envtorch.client import AsyncEnvClient, AsyncVectorEnv
from envtorch.client.client_options import Wire
from envtorch.errors import ConnectFailed, EnvTorchError, SessionLost
from envtorch.types import State
from tests.chaos.test_soak import show
from tests.recovery.dice import WILD_STEP, DiceEnv, Roll, Rolled, rolls_of
from tests.recovery.servers import Killable, sessions_in, start_dice

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

EPISODES = 200
ALONE = 160
"""The others are in vectors."""
VECTOR = 8
STEPS = 50
KILL_EVERY_S = 3.0
SERVERS = 6
"""A server that was killed takes some seconds to be there again."""
WIRES: tuple[Wire, ...] = ("json", "msgpack")


class Fleet:
    """Addresses whose servers are killed, one every three seconds, and started again on the same port."""

    def __init__(self, log: Path, **env_vars: str) -> None:
        self._log, self._env_vars = log, env_vars
        with ThreadPoolExecutor(SERVERS) as starting:
            self.servers = list(starting.map(lambda _: self._start(), range(SERVERS)))
        self.urls = [server.url for server in self.servers]
        self.kills = 0
        self.seconds = 0.0
        self._restarts = ThreadPoolExecutor(SERVERS)
        self._up = set(range(SERVERS))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._strike)

    def _start(self, port: int | None = None) -> Killable:
        return start_dice(self._log, port=port, env_vars=self._env_vars)

    def _strike(self) -> None:
        dice = random.Random(3)
        began = time.monotonic()
        while not self._ending.wait(max(began + (self.kills + 1) * KILL_EVERY_S - time.monotonic(), 0.1)):
            if self._up:  # the others are being started
                number = dice.choice(sorted(self._up))
                self._up.discard(number)
                self.servers[number].kill()
                self.kills += 1
                self._restarts.submit(self._restart, number)
        self.seconds = time.monotonic() - began

    def _restart(self, number: int) -> None:
        old = self.servers[number]
        old.close()
        self.servers[number] = self._start(int(old.url.rsplit(":", 1)[1]))
        self._up.add(number)

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._restarts.shutdown()
        for server in self.servers:
            server.close()


Seen = tuple[list[list[int]], float]
"""What an episode saw at each step, and the longest that one took."""
Clients = TypeVar("Clients", AsyncEnvClient[Roll, Rolled, State], AsyncVectorEnv[Roll, Rolled, State])


async def connected(make: Callable[[], Clients]) -> Clients:
    """Opening is the caller's to try again: no episode has begun."""
    while True:
        try:
            return await make().connect()
        except (ConnectFailed, SessionLost):
            await asyncio.sleep(0.2)


async def play(fleet: Fleet, seed: int, pace_s: float) -> Seen:
    """An episode by itself."""
    seen: list[list[int]] = []
    longest_s = 0.0
    url, wire = fleet.urls[seed % SERVERS], WIRES[seed % 2]
    env = await connected(lambda: DiceEnv.aio(url, recover="replay", elsewhere=fleet.urls, wire=wire))
    async with env:
        await env.reset(seed=seed, episode_id=str(seed))
        for _ in range(STEPS):
            began = time.monotonic()
            seen.append((await env.step(Roll())).observation.rolls)
            longest_s = max(longest_s, time.monotonic() - began)
            await asyncio.sleep(pace_s)
    return seen, longest_s


async def play_together(fleet: Fleet, seeds: range, pace_s: float) -> list[Seen]:
    """Episodes in one vector."""
    seen: list[list[list[int]]] = [[] for _ in seeds]
    longest_s = 0.0
    url, wire, count = fleet.urls[seeds[0] % SERVERS], WIRES[seeds[0] // VECTOR % 2], len(seeds)
    options: dict[str, Any] = {"recover": "replay", "elsewhere": fleet.urls, "wire": wire}
    envs = await connected(lambda: DiceEnv.aio.vector(url, count, **options))
    async with envs:
        await envs.reset({i: {"seed": seed, "episode_id": str(seed)} for i, seed in enumerate(seeds)})
        for _ in range(STEPS):
            began = time.monotonic()
            for place, result in enumerate(await envs.step([Roll()] * count)):
                seen[place].append(result.observation.rolls)
            longest_s = max(longest_s, time.monotonic() - began)
            await asyncio.sleep(pace_s)
    return [(one, longest_s) for one in seen]


def test_every_episode_ends_as_it_would_have_without_the_kills(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pace_s = min(request.config.getoption("--chaos-seconds"), 120.0) / STEPS
    log = tmp_path / "log"

    async def run(fleet: Fleet) -> list[Seen]:
        alone = [play(fleet, seed, pace_s) for seed in range(ALONE)]
        starts = range(ALONE, EPISODES, VECTOR)
        together = [play_together(fleet, range(seed, seed + VECTOR), pace_s) for seed in starts]
        found = await asyncio.gather(asyncio.gather(*alone), asyncio.gather(*together))
        return [*found[0], *(seen for vector in found[1] for seen in vector)]

    with Fleet(log) as fleet:
        played = asyncio.run(run(fleet))
    sessions = sessions_in(log)
    replayed = sum(map(len, sessions.values())) - EPISODES * STEPS
    show(
        f"{EPISODES} episodes of {STEPS} steps, a server killed every {KILL_EVERY_S:g} s",
        {
            "seconds": round(fleet.seconds),
            "kills": fleet.kills,
            "episodes finished, by clients and in vectors": f"{ALONE} + {len(played) - ALONE}",
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

    async def run(fleet: Fleet) -> list[BaseException | Seen]:
        playing = (play(fleet, seed, 0.3) for seed in range(60))
        return await asyncio.gather(*playing, return_exceptions=True)

    with Fleet(tmp_path / "log", **{WILD_STEP: str(wild)}) as fleet:
        outcomes = asyncio.run(run(fleet))
    found = [error for error in outcomes if isinstance(error, EnvTorchError)]
    show(
        f"60 episodes whose step {wild} is not deterministic, a server killed every {KILL_EVERY_S:g} s",
        {
            "seconds": round(fleet.seconds),
            "kills": fleet.kills,
            "episodes lost, by step": dict(Counter(error.details.get("step") for error in found)),
            "episodes that lost no server after it": len(outcomes) - len(found),
        },
    )
    assert found, "some episode was on a server that was killed"
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, SessionLost)
            assert outcome.details == {"step": wild}, outcome
