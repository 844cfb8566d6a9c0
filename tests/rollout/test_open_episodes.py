"""Episodes whose turns the caller takes, over a real server."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from envtorch.errors import EnvironmentFailed, SessionLost, Unsupported
from envtorch.rollout import Completion, Ending, NotAnAction, OpenEpisode, Rollouts, Task
from tests.rollout.dials import END, LETTERS, RAISE, DialEnv, Player, Riveted, dials, lose, upwards
from tests.support import Running, eventually

QUICK = {"wait_s": 60.0, "reconnect_s": 1.0}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def press(number: int) -> Completion:
    return Completion(f'{{"number": {number}}}')


async def begin(server: Running, **options: Any) -> OpenEpisode:
    return await OpenEpisode.begin(DialEnv, server.url, 3, client_options=QUICK, **options)


def test_an_episode_is_what_rollouts_play_with_the_same_choices(server: Running) -> None:
    async def run() -> None:
        player = Player(upwards)
        async with await begin(server, template=LETTERS) as episode:
            while episode.over is None:
                (completion,) = await player([episode.prompt])
                heard = await episode.act(completion)
                assert tuple(episode.messages[len(episode.messages) - len(heard) :]) == heard
        mine = episode.trajectory()
        async with Rollouts(DialEnv, server.url, Player(upwards), template=LETTERS) as rollouts:
            theirs = await rollouts.run(3)
        assert (mine.messages, mine.tokens, mine.reward) == (theirs.messages, theirs.tokens, theirs.reward)
        assert mine.ending is theirs.ending is Ending.DONE

    asyncio.run(run())
    eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_turns_end_where_they_were_said_to(server: Running) -> None:
    async def run() -> None:
        async with await begin(server, max_turns=2) as episode:
            assert episode.turn_reward is None
            assert (await episode.act(press(11)))[0]["role"] == "user"
            assert episode.turn_reward == pytest.approx(-0.125)
            await episode.act(press(11))
            assert episode.over == (Ending.MAX_TURNS, None)
            with pytest.raises(ValueError, match="the episode is over"):
                await episode.act(press(11))
        assert episode.trajectory().reward == -0.25

    asyncio.run(run())


def test_the_policys_mistake_is_scored_and_others_faults_are_raised(server: Running) -> None:
    async def run() -> None:
        async with await begin(server) as mistaken:
            assert await mistaken.act(Completion("I would rather not.")) == ()
            mistaken.raise_unless_scored()
            assert isinstance(mistaken.trajectory().blame, NotAnAction)
            assert mistaken.trajectory().reward == 0.0
        async with await begin(server) as failing:
            await failing.act(press(RAISE))
            assert failing.trajectory().reward is None
            with pytest.raises(EnvironmentFailed):
                failing.raise_unless_scored()
        async with await begin(server) as lost:
            await lose(server, 0)
            await lost.act(press(1))
            assert lost.trajectory().ending is Ending.LOST
            with pytest.raises(SessionLost):
                lost.raise_unless_scored()

    asyncio.run(run())


def test_a_fork_continues_the_same_conversation_separately(server: Running) -> None:
    async def run() -> None:
        async with await begin(server, template=LETTERS) as episode:
            said = [*LETTERS.encode('{"number": 11}'), END]
            await episode.act(Completion(ids=said))
            (copy,) = await episode.fork()
            async with copy:
                assert copy.messages == episode.messages
                await copy.act(Completion(ids=said))
                assert len(copy.messages) == len(episode.messages) + 2
                assert copy.trajectory().tokens.ids[: len(episode.prompt.ids or ())] == episode.prompt.ids

    asyncio.run(run())
    eventually(lambda: server.sessions.active == 0, "every session is closed")


def test_a_group_has_one_beginning_also_where_nothing_can_be_copied(server: Running) -> None:
    async def run(url: str) -> None:
        task = Task({"seed": 3}, prompt="Find it.")
        group = await OpenEpisode.begin_group(DialEnv, url, task, size=4, client_options=QUICK)
        assert len({str(episode.messages) for episode in group}) == 1
        assert group[0].messages[1]["content"].startswith("Find it.")
        for number, episode in enumerate(group):
            await episode.act(press(number))
        for episode in group:
            await episode.close()

    asyncio.run(run(server.url))
    eventually(lambda: server.sessions.active == 0, "every session is closed")
    with dials(Riveted) as riveted:
        asyncio.run(run(riveted.url))
        eventually(lambda: riveted.sessions.active == 0, "every session is closed")


def test_a_reset_that_fails_leaves_no_session(server: Running) -> None:
    async def run() -> None:
        with pytest.raises((Unsupported, ValueError)):
            await OpenEpisode.begin(DialEnv, server.url, {"seed": "not a number"}, client_options=QUICK)

    asyncio.run(run())
    eventually(lambda: server.sessions.active == 0, "every session is closed")
