"""Scores given to a group whose sessions are still there."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from envtorch.errors import (
    EnvironmentFailed,
    EnvTorchError,
    InvalidAction,
    OutOfResources,
    SessionLost,
    TimedOut,
    Unsupported,
)
from envtorch.llm import LLMClient
from envtorch.rollout import (
    Candidate,
    Ending,
    GroupScorer,
    Rollouts,
    TrajectoryFile,
    TrajectoryGroup,
    score_by,
    score_each,
)
from envtorch.rubrics import LLMJudge, Rubric
from tests.rollout.dials import RAISE, SLEEP, DialEnv, Player, Press, Riveted, dials, lose, upwards
from tests.support import Running, eventually


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def play(server: Running, score: GroupScorer, size: int = 3, **options: Any) -> TrajectoryGroup:
    async def run() -> TrajectoryGroup:
        policy = options.pop("policy", Player(upwards))
        record = options.pop("record", None)
        made = Rollouts(DialEnv, server.url, policy, score=score, concurrency=16, max_turns=2, **options)
        async with made as rollouts:
            return await anext(rollouts.groups([5], size=size, record=record))

    group = asyncio.run(run())
    eventually(lambda: server.sessions.active == 0, "every session is closed")
    return group


def test_a_scorer_steps_on_frozen_forks_and_leaves_the_sessions_as_they_ended(server: Running) -> None:
    seen: list[tuple[str, str, int, int]] = []

    async def score(candidate: Candidate) -> float:
        async with candidate.fork() as one:
            first = (await one.step(Press(number=11))).observation.hint
        async with candidate.fork() as other:
            again = (await other.step(Press(number=11))).observation.hint
            after = (await other.state()).step_count
        seen.append((first, again, after, (await candidate.state()).step_count))
        return candidate.trajectory.member / 2

    group = play(server, score_each(score))
    assert group.rewards == (0.0, 0.5, 1.0)
    assert seen == [("lower after 3", "lower after 3", 3, 2)] * 3
    assert group[0].score == 0.0


@pytest.mark.parametrize("share", ["fork", "reset"])
def test_members_are_compared_with_each_other(server: Running, share: Any) -> None:
    async def rank(candidates: Sequence[Candidate]) -> list[float]:
        assert len({id(candidate.session) for candidate in candidates}) == 4
        return [float(place) for place in range(len(candidates))]

    assert play(server, rank, size=4, share=share).rewards == (0.0, 1.0, 2.0, 3.0)


def test_a_member_whose_session_is_gone_before_it_is_scored_is_lost_and_the_others_are_not(
    server: Running,
) -> None:
    async def score(candidate: Candidate) -> float:
        if candidate.trajectory.member == 1:
            raise SessionLost("gone")
        return 1.0

    group = play(server, score_each(score))
    assert group.rewards == (1.0, None, 1.0)
    assert (group[1].ending, group[1].cause) == (Ending.LOST, "lost: SessionLost")


@pytest.mark.parametrize("error", [TimedOut, EnvironmentFailed, OutOfResources])
@pytest.mark.parametrize("is_group", [False, True])
def test_a_member_that_cannot_be_scored_does_not_end_the_rollouts(
    server: Running, error: type[EnvTorchError], is_group: bool
) -> None:
    async def score(candidate: Candidate) -> float:
        if candidate.trajectory.member == 1:
            raise error("the function never ends")
        return 1.0

    async def score_all(candidates: Sequence[Candidate]) -> list[float]:
        return [await score(candidate) for candidate in candidates]

    group = play(server, score_all if is_group else score_each(score))
    assert group.rewards == (None, None, None) if is_group else (1.0, None, 1.0)
    assert (group[1].ending, group[1].cause) == (Ending.ENVIRONMENT, f"environment: {error.__name__}")


def test_a_step_of_the_scorer_that_times_out_is_no_error_of_the_rollouts(server: Running) -> None:
    async def score(candidate: Candidate) -> float:
        async with candidate.fork() as one:
            await one.step(Press(number=SLEEP), timeout_s=0.1)
        raise AssertionError("it never ends")

    assert {member.ending for member in play(server, score_each(score))} == {Ending.ENVIRONMENT}


def test_an_error_of_the_scorer_itself_is_raised(server: Running) -> None:
    async def score(candidate: Candidate) -> float:
        raise InvalidAction("no such action")

    with pytest.raises(InvalidAction):
        play(server, score_each(score))


def test_a_session_that_is_closed_behind_the_scorers_back_is_lost(server: Running) -> None:
    async def score(candidates: Sequence[Candidate]) -> list[float]:
        while server.sessions.active:
            await lose(server, 0)
        async with candidates[0].fork():
            raise AssertionError("there is no session to fork")

    options: dict[str, Any] = {"client_options": {"wait_s": 5.0, "reconnect_s": 0.5}}
    group = play(server, score, **options)
    assert {member.ending for member in group} == {Ending.LOST}


def test_what_did_not_end_scored_is_not_shown_to_the_scorer(server: Running) -> None:
    async def score(candidates: Sequence[Candidate]) -> list[float]:
        raise AssertionError("nobody is to be scored")

    group = play(server, score, policy=Player(lambda prompt: RAISE))
    assert {member.ending for member in group} == {Ending.ENVIRONMENT}


def test_scores_are_in_the_file(server: Running, tmp_path: Any) -> None:
    async def score(candidate: Candidate) -> float:
        return 0.25

    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    play(server, score_each(score), record=file)
    assert [t.reward for t in TrajectoryFile(file.path)] == [0.25] * 3


def test_a_scorer_that_gives_too_few_scores_is_told_so(server: Running) -> None:
    async def score(candidates: Sequence[Candidate]) -> list[float]:
        return [1.0]

    with pytest.raises(ValueError, match="1 scores for 3 trajectories"):
        play(server, score)


def test_an_environment_that_cannot_be_copied_says_so_to_the_scorer() -> None:
    async def score(candidate: Candidate) -> float:
        assert (await candidate.state()).step_count == 2
        with pytest.raises(Unsupported):
            async with candidate.fork():
                pass
        return 1.0

    with dials(Riveted) as server:
        assert play(server, score_each(score)).rewards == (1.0, 1.0, 1.0)


class Grader(LLMClient):
    """A model that counts what it was shown."""

    async def complete(self, prompt: str, **options: Any) -> str:
        return "0.75" if '{"number": 1}' in prompt and "assistant" in prompt else "0"


class Brief(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        return float(len(action) < len(observation))


def test_rubrics_and_judges_of_ours_score(server: Running) -> None:
    judge = LLMJudge("Rate {action} after {observation}", Grader("http://127.0.0.1:1"))
    assert play(server, score_by(judge)).rewards == (0.75,) * 3
    assert play(server, score_by(Brief())).rewards == (1.0,) * 3
