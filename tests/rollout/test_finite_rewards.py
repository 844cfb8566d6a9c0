"""A reward that is NaN or infinite is a failure of what gave it: it never becomes a number, or a zero."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from envtorch.errors import EnvironmentFailed
from envtorch.evaluation import EvalReport
from envtorch.rollout import (
    Candidate,
    Completion,
    Ending,
    OpenEpisode,
    Prompt,
    Rollouts,
    RolloutSummary,
    Task,
    Trajectory,
    TrajectoryFile,
    score_by,
    score_each,
)
from envtorch.rubrics import Rubric
from envtorch.train.trl_environments import TRLEnvironments
from envtorch.types import StepResult
from tests.rollout.dials import Dial, DialEnv, Player, Press, Seen, dials
from tests.support import Running

ODD = {1: "nan", 2: "inf", 3: "-inf"}
HUGE = 4
"""Half of the largest float: three of them are infinite."""


class OddDial(Dial):
    """A dial whose rewards are what the action wants."""

    async def step_async(self, action: Press) -> Seen:
        self._steps += 1
        reward = 8e307 if action.number == HUGE else float(ODD.get(action.number, 1.0))
        return Seen(hint=f"after {self._steps}", reward=reward, done=self._steps == 3)


class OwnRewards(DialEnv):
    """A client that makes rewards of its own."""

    def _parse_result(self, payload: Any) -> StepResult[Seen]:
        return StepResult(Seen(hint="?"), float("nan"), done=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials(OddDial) as running:
        yield running


def pressing(*numbers: int) -> Player:
    """Presses these, one a turn."""
    return Player(lambda prompt: numbers[sum(one["role"] == "assistant" for one in prompt.messages)])


def played(server: Running, policy: Player, client: type[DialEnv] = DialEnv, **options: Any) -> Trajectory:
    async def play() -> Trajectory:
        async with Rollouts(client, server.url, policy, **options) as rollouts:
            return await rollouts.run(7)

    return asyncio.run(play())


def is_failed(trajectory: Trajectory, reward: str) -> bool:
    assert trajectory.ending is Ending.ENVIRONMENT
    assert trajectory.reward is None
    assert isinstance(trajectory.blame, EnvironmentFailed)
    return f"the reward {reward}:" in str(trajectory.blame)


@pytest.mark.parametrize("number", ODD)
def test_a_step_without_a_finite_reward_ends_the_rollout(server: Running, number: int) -> None:
    trajectory = played(server, pressing(0, number, 0))
    assert is_failed(trajectory, ODD[number])
    assert [turn.reward for turn in trajectory.turns] == [1.0, None]


def test_rewards_that_add_up_to_infinity_end_the_rollout(server: Running) -> None:
    trajectory = played(server, pressing(HUGE, HUGE, HUGE))
    assert is_failed(trajectory, "inf")
    assert [turn.reward for turn in trajectory.turns] == [8e307, 8e307, None]


def test_a_client_that_makes_its_own_rewards_is_checked_as_well(server: Running) -> None:
    assert is_failed(played(server, pressing(0), OwnRewards), "nan")


def test_the_rest_of_a_group_keeps_its_rewards(server: Running, tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "rollouts.jsonl")
    calls = iter([0, 1, 0, 0] + [0] * 8)

    async def play() -> list[Trajectory]:
        policy = Player(lambda prompt: next(calls))
        async with Rollouts(DialEnv, server.url, policy) as rollouts:
            return [one async for group in rollouts.groups([7], size=4, record=file) for one in group]

    members = asyncio.run(play())
    assert sorted(str(one.reward) for one in members) == ["3.0", "3.0", "3.0", "None"]
    lines = file.path.read_text().splitlines()
    assert "NaN" not in file.path.read_text()
    assert sorted(str(json.loads(line)["reward"]) for line in lines) == ["3.0", "3.0", "3.0", "None"]
    assert [one.cause for one in file] == [one.cause for one in members]
    summary = RolloutSummary.of(members)
    assert (summary.scored, summary.reward_mean) == (3, 3.0)
    report = EvalReport.of({}, [members[0].task], members)
    assert report.tasks[0].scored == report.tasks[0].passed == 3
    assert report.endings["environment: EnvironmentFailed"] == 1


def test_a_branch_of_a_tree_without_a_finite_reward_has_no_value(server: Running) -> None:
    said: list[int] = []

    def choose(prompt: Prompt) -> int:
        said.append(len(prompt.messages))
        return 1 if len(said) == 1 else 0

    async def play() -> Any:
        async with Rollouts(DialEnv, server.url, Player(choose)) as rollouts:
            return await rollouts.tree(7, width=2, branch_when=lambda talk: not talk.turns, max_leaves=2)

    tree = asyncio.run(play())
    assert sorted(str(tree.value(node)) for node in tree.root.children) == ["3.0", "None"]
    assert tree.value(tree.root) == 3.0
    assert [one.cause for one in tree.trajectories].count("environment: EnvironmentFailed") == 1


class Undecided(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        return float("nan")


@pytest.mark.parametrize("kind", ["function", "rubric", "group"])
def test_a_score_that_is_not_finite_is_no_score(server: Running, kind: str) -> None:
    async def score(candidate: Candidate) -> float:
        return float("nan")

    async def score_all(candidates: Sequence[Candidate]) -> Sequence[float]:
        return [float("nan") for _ in candidates]

    scorer = {"function": score_each(score), "rubric": score_by(Undecided()), "group": score_all}[kind]
    trajectory = played(server, pressing(0, 0, 0), score=scorer)
    assert is_failed(trajectory, "nan")
    assert trajectory.score is None
    assert "the scorer" in str(trajectory.blame)


def test_an_open_episode_says_why_it_has_no_reward(server: Running) -> None:
    async def play() -> Trajectory:
        async with await OpenEpisode.begin(DialEnv, server.url, Task({"seed": 7})) as episode:
            await episode.act(Completion('{"number": 1}'))
            with pytest.raises(EnvironmentFailed, match="the reward nan"):
                episode.raise_unless_scored()
            return episode.trajectory()

    assert is_failed(asyncio.run(play()), "nan")


@pytest.mark.parametrize("client", [DialEnv, OwnRewards])
def test_trl_is_given_no_reward(server: Running, client: type[DialEnv]) -> None:
    with TRLEnvironments(client, server.url) as environments:
        environment = environments()
        environment.reset(seed=7)
        with pytest.raises(EnvironmentFailed, match="the reward nan"):
            environment.press(number=1)
        assert environment.get_reward() is None


def test_gymnasium_raises_and_a_vector_truncates_that_session_alone(server: Running) -> None:
    import envtorch.train.gymnasium_envs  # noqa: F401, it registers the environment

    spaces = {"number": gymnasium.spaces.Discrete(5), "hint": gymnasium.spaces.Text(64)}
    given = {"client": DialEnv, "base_url": server.url, "spaces": spaces}
    env = gymnasium.make("envtorch/Session-v0", disable_env_checker=True, **given)
    env.reset(seed=7)
    with pytest.raises(EnvironmentFailed, match="the reward nan"):
        env.step(1)
    env.close()
    envs = gymnasium.make_vec(
        "envtorch/Session-v0",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        failures="truncate",
        **given,
    )
    envs.reset(seed=7)
    _, rewards, _, truncated, infos = envs.step([0, 1])
    assert (rewards[0], truncated.tolist()) == (1.0, [False, True])
    assert isinstance(infos["error"][1], EnvironmentFailed)
    envs.close()
