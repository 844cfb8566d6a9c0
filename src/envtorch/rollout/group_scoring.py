"""Scores for the members of a group, given when all of them have ended and their sessions are still there."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from envtorch.errors import (
    CapacityReached,
    EnvironmentFailed,
    EnvTorchError,
    OutOfResources,
    SessionLost,
    TimedOut,
)
from envtorch.pool.outcomes import is_infrastructure
from envtorch.rollout.beginnings import RolloutClient, close_quietly
from envtorch.rollout.finite_rewards import finite_score
from envtorch.rollout.trajectories import Ending, Trajectory
from envtorch.rubrics import Rubric

__all__ = ["Candidate", "GroupScorer", "conversation_text", "score_by", "score_each", "scored"]

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 60.0
"""How long a fork waits for room on its server."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member of a group that is to be scored."""

    trajectory: Trajectory
    session: RolloutClient
    """Its session, as the episode left it. Take no step here: scores that come after would see it."""

    @asynccontextmanager
    async def fork(self) -> AsyncIterator[Any]:
        """A client of a copy of its session, to run tests in or to look around; closed after the block.

        Waits while the server has no room. Raises `Unsupported` when the environment cannot be copied.
        """
        copy = await self._copy()
        try:
            yield copy
        finally:
            await close_quietly(copy)

    async def state(self) -> Any:
        """The state of its environment, as the episode left it."""
        return await self.session.state()

    async def _copy(self) -> RolloutClient:
        waited_s, pause_s = 0.0, 0.05
        while True:
            try:
                copies: list[RolloutClient] = await self.session.fork(1)
                return copies[0]
            except CapacityReached:
                if waited_s >= LONGEST_WAIT_S:
                    raise
            await asyncio.sleep(pause_s)
            waited_s, pause_s = waited_s + pause_s, min(pause_s * 2, 1.0)


Score = float | EnvTorchError | None
"""What a scorer gives a member. None when its session was lost before it was scored: it is `LOST`, and has no
reward. An error, as the score NaN or an infinite one, makes it `ENVIRONMENT`, without a reward."""

GroupScorer = Callable[[Sequence[Candidate]], Awaitable[Sequence[Score]]]
"""An async callable: the members of a group that have ended, and a score for each, in the same order."""

UNSCORABLE = (EnvironmentFailed, TimedOut, OutOfResources)
"""Errors of a scorer's own steps that say something about this member alone, such as code that never ends."""


def score_each(score: Callable[[Candidate], Awaitable[float]]) -> GroupScorer:
    """A scorer that scores each member by itself, all at once.

    A member whose session is lost is `LOST`, and one in whose session a step of the scorer fails, times out
    or exceeds a limit is `ENVIRONMENT`; neither has a reward. If code that never ends is to be worth nothing,
    let the scorer catch `TimedOut` and give 0.0. Other errors are the scorer's own, and are raised.
    """

    async def one(candidate: Candidate) -> Score:
        try:
            given = await score(candidate)
        except EnvTorchError as error:
            return _instead_of_score(error, candidate.trajectory)
        if given is None:
            raise TypeError("the scorer gave None: it must give a number")
        return given

    @functools.wraps(score, assigned=("__qualname__",), updated=())
    async def score_group(candidates: Sequence[Candidate]) -> Sequence[Score]:
        return await asyncio.gather(*map(one, candidates))

    return score_group


def score_by(rubric: Rubric) -> GroupScorer:
    """A scorer that asks a rubric, such as an `LLMJudge`, about each member.

    The rubric's action is the last thing that the policy said, and its observation the whole conversation as
    text. A rubric that remembers an episode, as a `TrajectoryRubric` does, belongs into the environment.
    """

    async def score(candidate: Candidate) -> float:
        messages = candidate.trajectory.messages
        said = [str(message.get("content") or "") for message in messages if message["role"] == "assistant"]
        found = rubric(said[-1] if said else "", conversation_text(candidate.trajectory))
        return float(await found if isinstance(found, Awaitable) else found)

    score.__qualname__ = f"score_by {type(rubric).__qualname__}"
    return score_each(score)


def conversation_text(trajectory: Trajectory) -> str:
    """The messages of a trajectory, as a judge reads them."""
    return "\n\n".join(
        f"{message['role']}: {message.get('content') or message.get('tool_calls') or ''}"
        for message in trajectory.messages
    )


async def scored(
    members: Sequence[Trajectory], sessions: dict[int, RolloutClient], scorer: GroupScorer
) -> list[Trajectory]:
    """The members with their scores. `sessions` are those of the members to be scored, by their places."""
    candidates = [Candidate(members[place], session) for place, session in sorted(sessions.items())]
    if not candidates:
        return list(members)
    try:
        scores = await scorer(candidates)
    except EnvTorchError as error:
        scores = [_instead_of_score(error, candidate.trajectory) for candidate in candidates]
    if len(scores) != len(candidates):
        raise ValueError(f"the scorer gave {len(scores)} scores for {len(candidates)} trajectories")
    given = {candidate.trajectory.member: score for candidate, score in zip(candidates, scores, strict=True)}
    return [_with_score(member, given) for member in members]


def _instead_of_score(error: EnvTorchError, trajectory: Trajectory) -> Score:
    """What stands for the score that could not be given. Raises the scorer's own errors."""
    is_lost = is_infrastructure(error)
    if not is_lost and not isinstance(error, UNSCORABLE):
        raise error
    logger.warning("task %s: member %d could not be scored: %s", trajectory.task.id, trajectory.member, error)
    return None if is_lost else error


def _with_score(member: Trajectory, given: dict[int, Score]) -> Trajectory:
    if member.member not in given:
        return member
    score = given[member.member]
    if score is None:
        lost = SessionLost("its session was lost before it was scored")
        return replace(member, ending=Ending.LOST, blame=lost)
    if isinstance(score, EnvTorchError):
        return replace(member, ending=Ending.ENVIRONMENT, blame=score)
    try:
        return replace(member, score=finite_score(score))
    except EnvironmentFailed as failed:
        logger.warning("task %s: %s", member.task.id, failed.message)
        return replace(member, ending=Ending.ENVIRONMENT, blame=failed)
