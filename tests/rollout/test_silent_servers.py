"""Rollouts whose server falls silent in mid-episode, with its connections open."""

import asyncio
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from envtorch.errors import TimedOut
from envtorch.pool.outcomes import is_infrastructure
from envtorch.rollout import Completion, Ending, Prompt, Rollouts, Trajectory
from tests.faults.proxy import proxy_to
from tests.rollout.dials import SLEEP, DialEnv, Player, dials, upwards
from tests.support import Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def test_a_server_that_falls_silent_in_a_step_is_not_the_policys_and_the_next_one_plays(
    server: Running,
) -> None:
    async def run() -> Trajectory:
        async with proxy_to(urlsplit(server.url).port or 0) as doomed:

            async def silencing(call: int) -> None:
                if call == 2:
                    doomed.fall_silent()

            player = Player(upwards, before=silencing)
            where = [server.url, f"http://127.0.0.1:{doomed.port}"]  # the first episode is the second one's
            async with Rollouts(DialEnv, where, player, max_turns=2, step_timeout_s=3.0) as rollouts:
                return await rollouts.run(3)

    played = asyncio.run(run())
    [lost] = played.lost
    assert isinstance(lost, TimedOut)
    assert lost.details == {"is_connected": True, "is_server_late": True}
    assert played.ending in (Ending.DONE, Ending.MAX_TURNS)
    assert len(played.turns) == 2


def test_a_deadline_that_the_server_keeps_is_the_policys(server: Running) -> None:
    async def sleepy(prompts: Sequence[Prompt]) -> list[Completion]:
        return [Completion(f'{{"number": {SLEEP}}}') for _ in prompts]

    async def run() -> Trajectory:
        async with Rollouts(DialEnv, server.url, sleepy, step_timeout_s=0.1) as rollouts:
            return await rollouts.run(3)

    played = asyncio.run(run())
    assert played.ending is Ending.POLICY
    assert isinstance(played.blame, TimedOut)
    assert not is_infrastructure(played.blame)
    assert not played.lost
