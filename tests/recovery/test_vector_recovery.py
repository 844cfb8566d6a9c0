"""Vectors whose episodes survive their server, over real sockets and servers that are killed."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envtorch import create_app
from envtorch.client.client_options import Wire
from envtorch.errors import EnvTorchError, SessionLost, TimedOut
from tests.client.test_vector_failures import end_behind_its_back
from tests.recovery.dice import ROOM, STEP_S, WILD_STEP, Dice, DiceEnv, Roll, rolls_of
from tests.recovery.servers import DICE, Killable, require_each_step_once, sessions_in
from tests.support import running

STEPS = 8
PLACES = 5
SMALL = "tests.recovery.dice:small"
TOGETHER = "tests.recovery.dice:together"
Start = Callable[..., Killable]


def rolls(steps: int, places: range = range(PLACES)) -> list[list[int]]:
    return [rolls_of(20 + place, steps) for place in places]


@pytest.mark.parametrize("wire", ["json", "msgpack"])
@pytest.mark.parametrize("image", [DICE, TOGETHER])
def test_a_vector_goes_on_after_its_server_was_killed(
    start: Start, tmp_path: Path, image: str, wire: Wire
) -> None:
    first, second = start(image), start(image)
    with DiceEnv.vector(first.url, PLACES, recover="replay", elsewhere=[second.url], wire=wire) as envs:
        envs.reset(seed=20, episode_id="one")
        for n in range(1, STEPS + 1):
            if n == 4:
                first.kill()
            result = envs.step([Roll()] * PLACES if n % 2 else {"sides": [6] * PLACES})
            assert [one.observation.rolls for one in result] == rolls(n)
        assert [state.step_count for state in envs.state()] == [STEPS] * PLACES
        assert result.errors == {}
    require_each_step_once(tmp_path / "log")
    assert sorted(map(len, sessions_in(tmp_path / "log").values())) == [3] * PLACES + [STEPS] * PLACES


def test_an_async_vector_whose_sessions_are_at_different_steps_goes_on(start: Start, tmp_path: Path) -> None:
    first, second = start(), start()

    async def run() -> None:
        options = {"recover": "replay", "elsewhere": [second.url]}
        async with DiceEnv.aio.vector(first.url, PLACES, **options) as envs:  # type: ignore[arg-type]
            await envs.reset(seed=20, episode_id="one")
            for n in range(PLACES):
                outcomes = {p: o async for p, o in envs.as_completed(dict.fromkeys(range(n, PLACES), Roll()))}
                assert len(outcomes) == PLACES - n
            await envs.send({4: Roll(), 2: Roll()})
            await asyncio.to_thread(first.kill)
            async for place, outcome in envs.as_completed({0: Roll()}):
                assert not isinstance(outcome, EnvTorchError)
                assert outcome.observation.rolls == rolls_of(20 + place, place + 2)

    asyncio.run(run())
    require_each_step_once(tmp_path / "log")


def test_forks_in_a_vector_are_played_again_from_their_origins_history(start: Start) -> None:
    first, second = start(), start()
    with DiceEnv.vector(first.url, 2, recover="replay", elsewhere=[second.url]) as envs:
        envs.reset(seed=20, episode_id="one")
        envs.step([Roll()] * 2)
        assert envs.fork(1, 2) == [2, 3]
        envs.step([Roll()] * 4)
        first.kill()
        result = envs.step([Roll()] * 4)
        seeds = [20, 21, 21, 21]
        assert [one.observation.rolls for one in result] == [rolls_of(seed, 3) for seed in seeds]
        assert envs.fork(3) == [4], "a recovered copy can be copied"
        envs.end([0])
        assert envs.reset({0: {"seed": 9}})[0].observation.rolls == []  # type: ignore[union-attr]


def test_a_fork_after_the_servers_death_is_made_on_the_next_one(start: Start) -> None:
    first, second = start(), start()
    with DiceEnv.vector(first.url, 1, recover="replay", elsewhere=[second.url]) as envs:
        envs.reset(seed=20)
        envs.step([Roll()])
        first.kill()
        assert envs.fork(0) == [1]
        assert [one.observation.rolls for one in envs.step([Roll()] * 2)] == [rolls_of(20, 2)] * 2


def test_each_session_whose_answers_differ_says_at_which_step(start: Start) -> None:
    first, second = start(**{WILD_STEP: "3"}), start(**{WILD_STEP: "3"})
    with DiceEnv.vector(first.url, 3, recover="replay", elsewhere=[second.url]) as envs:
        envs.reset(seed=20)
        for _ in range(4):
            envs.send({0: Roll(), 2: Roll()})
            envs.receive(2)
        first.kill()
        result = envs.step([Roll()] * 3)
        assert result.ok == [False, True, False]
        assert result[1].observation.rolls == rolls_of(21, 1)
        for place in (0, 2):
            assert isinstance(result.errors[place], SessionLost)
            assert result.errors[place].details == {"step": 3}
        assert result.rewards[0] is None
        envs.reset({0: {"seed": 7}, 2: {"seed": 8}})
        again = envs.step([Roll()] * 3)
        assert [one.observation.rolls for one in again] == [rolls_of(7, 1), rolls_of(21, 2), rolls_of(8, 1)]


def test_a_deadline_stops_a_vectors_call_in_the_middle_of_a_recovery(start: Start, tmp_path: Path) -> None:
    first, second = start(), start(**{STEP_S: "0.1"})
    with DiceEnv.vector(first.url, 2, recover="replay", elsewhere=[second.url]) as envs:
        envs.reset(seed=20, episode_id="one")
        for _ in range(STEPS):
            envs.step([Roll()] * 2)
        first.kill()
        result = envs.step([Roll()] * 2, timeout_s=0.5)
        assert all(isinstance(error, TimedOut) for error in result.errors.values())
        assert [error.details["is_recovering"] for error in result.errors.values()] == [True, True]
        again = envs.step([Roll()] * 2)
        assert [one.observation.rolls for one in again] == rolls(STEPS + 1, range(2))
    require_each_step_once(tmp_path / "log")


def test_a_vector_is_recovered_at_its_own_address_when_a_server_is_there_again(start: Start) -> None:
    first = start()
    port = int(first.url.rsplit(":", 1)[1])
    with DiceEnv.vector(first.url, PLACES, recover="replay") as envs:
        envs.reset(seed=20)
        envs.step([Roll()] * PLACES)
        first.kill()
        first.close()
        start(port=port)
        assert [one.observation.rolls for one in envs.step([Roll()] * PLACES)] == rolls(2)


@pytest.mark.parametrize("has_room_for", ["1", "3"])
def test_a_vector_moves_on_from_a_server_that_is_too_small(start: Start, has_room_for: str) -> None:
    first, small, large = start(), start(SMALL, **{ROOM: has_room_for}), start()
    with DiceEnv.vector(first.url, PLACES, recover="replay", elsewhere=Route([small.url, large.url])) as envs:
        envs.reset(seed=20)
        envs.step([Roll()] * PLACES)
        first.kill()
        result = envs.step([Roll()] * PLACES)
        assert result.errors == {}
        assert [one.observation.rolls for one in result] == rolls(2)


def test_a_vector_stays_with_a_server_that_has_no_room_for_one_of_its_sessions() -> None:
    """Those that are well there stay, and are not put at risk for the one that was lost."""
    with running(create_app(Dice, sessions=2)) as first, running(create_app(Dice, sessions=2)) as second:
        options: Any = {"recover": "replay", "elsewhere": [second.url], "recover_s": 2.0}
        with DiceEnv.vector(first.url, 2, **options) as envs:
            envs.reset(seed=20)
            envs.step([Roll()] * 2)
            end_behind_its_back(envs, first.url, 1)
            with DiceEnv(first.url, wait_s=60) as other:
                other.reset()
                result = envs.step([Roll()] * 2)
            assert list(result.errors) == [1]
            assert "not recovered within 2 s" in str(result.errors[1])
            assert result[0].observation.rolls == rolls_of(20, 2)
            assert second.sessions.meter.opened == 0
            envs.reset({1: {"seed": 21}})
            assert envs.step([Roll()] * 2).errors == {}


class Route:
    """Addresses, one after the other."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._next = itertools.cycle(addresses)

    def next_address(self, timeout_s: float) -> str:
        return next(self._next)

    async def next_address_async(self, timeout_s: float) -> str:
        return next(self._next)

    def for_copy(self) -> "Route":
        return self

    def release(self) -> None: ...


def test_a_vector_reset_without_seeds_is_played_again_with_the_same_ones(start: Start) -> None:
    first, second = start(), start()
    with DiceEnv.vector(first.url, PLACES, recover="replay", elsewhere=[second.url]) as envs:
        envs.reset()
        begun = [one.observation.rolls for one in envs.step([Roll()] * PLACES)]
        first.kill()
        result = envs.step([Roll()] * PLACES)
        assert result.errors == {}
        assert [one.observation.rolls[:1] for one in result] == begun
