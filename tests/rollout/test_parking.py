"""Parking: the policy's calls stop, the sessions do not."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from envtorch.rollout import Completion, Ending, Prompt, Rollouts
from tests.rollout.dials import LETTERS, DialEnv, Player, dials, upwards
from tests.support import Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def test_episodes_go_on_with_new_weights_in_the_sessions_they_had(server: Running) -> None:
    async def run() -> None:
        third = asyncio.Event()
        calls = 0

        async def policy(prompts: Sequence[Prompt]) -> Sequence[Completion]:
            nonlocal calls
            calls += 1
            if calls == 3:
                third.set()
            assert not is_parked, "no call runs while the weights are replaced"
            return await player(prompts)

        is_parked = False
        player = Player(upwards)
        async with Rollouts(DialEnv, server.url, policy, template=LETTERS) as rollouts:
            playing = asyncio.create_task(rollouts.run(5))  # found with the tenth press
            await third.wait()
            await rollouts.park()
            is_parked, before = True, calls
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert calls == before
            assert server.sessions.active == 1
            assert not playing.done()
            is_parked = False
            rollouts.resume(version=5)
            played = await playing
        assert played.ending is Ending.DONE
        assert not played.lost
        said = [v for v, mask in zip(played.tokens.versions, played.tokens.mask, strict=True) if mask]
        assert said == sorted(said)
        assert set(said) == {0, 5}

    asyncio.run(run())


def test_a_policy_may_tell_the_version_itself(server: Running) -> None:
    async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
        return [Completion(ids=[*LETTERS.encode('{"number": 11}'), 0], version=9) for _ in prompts]

    async def run() -> set[int]:
        async with Rollouts(DialEnv, server.url, policy, template=LETTERS, max_turns=2) as rollouts:
            return set((await rollouts.run(1)).tokens.versions)

    assert asyncio.run(run()) == {0, 9}
