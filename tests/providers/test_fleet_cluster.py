"""Rendered manifests on a real cluster, under load: what an update, a kill and an eviction cost."""

import asyncio

import pytest

from tests.providers.cluster_fleet import Fleet, Load, Played, ReadyPods, build_dice, fleet
from tests.support import PATIENCE_S

pytestmark = [pytest.mark.kubernetes, pytest.mark.docker, pytest.mark.timeout(900)]

PLAYERS = 24


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    build_dice()


async def replaced(pods: Fleet, old: set[str], count: int) -> None:
    """Wait until so many pods have ended, and all are ready again."""
    async with asyncio.timeout(6 * PATIENCE_S):
        while len(old - set(there := await asyncio.to_thread(pods.ready))) < count or len(there) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.3)


def test_a_rolling_update_loses_no_episode_that_can_end_in_time() -> None:
    async def run(pods: Fleet) -> Played:
        old = set(pods.ready())
        load = Load(pods, players=PLAYERS, steps=20, pause_s=0.05)
        await asyncio.sleep(2)
        await asyncio.to_thread(pods.restart)
        await replaced(pods, old, count=3)
        await asyncio.sleep(1)
        return await load.stop()

    with fleet(replicas=3, finish_s=60, drain_s=5) as pods:
        played = asyncio.run(run(pods))
        print(f"rolling update of 3 replicas under {PLAYERS} players: {played}")
        assert not played.lost
        assert played.finished > PLAYERS
        assert "container" in pods.run_inside("envtorch", "doctor", "--json").split('"grade"')[1][:15]


def test_episodes_too_long_for_their_time_to_finish_move_in_a_rolling_update() -> None:
    """A second to finish, episodes of ten: those that recover end as if nothing had happened."""

    async def run(pods: Fleet) -> tuple[Played, Played]:
        old = set(pods.ready())
        recovering = {"recover": "replay", "elsewhere": ReadyPods(pods)}
        moved = Load(pods, players=PLAYERS, steps=100, pause_s=0.1, **recovering)
        told = Load(pods, players=PLAYERS, steps=100, pause_s=0.1)
        await asyncio.sleep(3)
        await asyncio.to_thread(pods.restart)
        await replaced(pods, old, count=3)
        return await moved.stop(), await told.stop()

    with fleet(replicas=3, finish_s=1, drain_s=5) as pods:
        moved, told = asyncio.run(run(pods))
        print(f"with recover='replay': {moved}; without: {told}")
        assert not moved.lost
        assert not moved.refused
        assert moved.finished >= PLAYERS
        assert told.lost, "and every loss has its name"


def test_servers_that_are_killed_under_load_lose_nothing_silently() -> None:
    async def run(pods: Fleet) -> tuple[Played, Played]:
        old = set(pods.ready())
        recovering = {"recover": "replay", "elsewhere": ReadyPods(pods)}
        moved = Load(pods, players=PLAYERS, steps=100, pause_s=0.05, **recovering)
        told = Load(pods, players=PLAYERS, steps=100, pause_s=0.05)
        await asyncio.sleep(3)
        for killed, uid in enumerate(sorted(old)[:2], 1):
            await asyncio.to_thread(pods.kill, uid)
            async with asyncio.timeout(2 * PATIENCE_S):
                while await asyncio.to_thread(pods.restarts) < killed:  # noqa: ASYNC110
                    await asyncio.sleep(0.3)
        return await moved.stop(), await told.stop()

    with fleet(replicas=3, finish_s=60, drain_s=5) as pods:
        moved, told = asyncio.run(run(pods))
        print(f"two servers killed, with recover='replay': {moved}; without: {told}")
        assert not moved.lost
        assert moved.finished >= PLAYERS
        assert told.lost, "and every loss has its name"
        assert told.finished
