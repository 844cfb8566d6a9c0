"""The tasks of a directory that is given: each with its solution, with nothing done, and with every cheat.

`make test-harbor TASKS=dir`, for sets of tasks that are not ours; `ROOT=dir` is a root that has what they
need, and `GRADING=plan` what those are graded on that choose nothing.
"""

import dataclasses
from pathlib import Path

import pytest

from envtorch.envs.terminal_env.environment import DEFAULT_POLICY
from envtorch.envs.terminal_env.episode_tasks import EpisodeTask
from envtorch.envs.terminal_env.harbor import GradingPlan, find_tasks, load_task
from envtorch.envs.terminal_env.task_checks import check_task
from envtorch.sandbox import Policy
from tests.envs.terminal_env.cheats import CHEATS

pytestmark = [pytest.mark.terminal, pytest.mark.timeout(1800)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--harbor-tasks")
    folders = [] if given is None else find_tasks(Path(given))
    metafunc.parametrize("folder", folders, ids=[folder.name for folder in folders])


@pytest.fixture(scope="module")
def policy(pytestconfig: pytest.Config) -> Policy:
    return dataclasses.replace(DEFAULT_POLICY, root=pytestconfig.getoption("--harbor-root"))


@pytest.fixture(scope="module")
def grading(pytestconfig: pytest.Config) -> GradingPlan | None:
    given: GradingPlan | None = pytestconfig.getoption("--harbor-grading")
    return given


def test_the_solution_scores_1_and_nothing_less(
    folder: Path, policy: Policy, grading: GradingPlan | None
) -> None:
    found = check_task(folder, policy, grading=grading)
    print(f"\n{folder.name}: solution {found.solution_reward}, nothing {found.nothing_reward}")
    assert found.ok, found.problems


def test_no_cheat_scores_more_than_nothing(folder: Path, policy: Policy, grading: GradingPlan | None) -> None:
    episode = EpisodeTask.of(load_task(folder, grading=grading), policy)
    rewards: dict[str, float] = {}
    for cheat, command in CHEATS.items():
        with episode.open() as workspace:
            workspace.run(command.replace("/app", episode.image.directory), timeout_s=30)
            rewards[cheat] = episode.grade(workspace).reward
    least = rewards["nothing at all"]
    print(f"\n{folder.name}: {len(rewards)} cheats, at most {max(rewards.values())}; nothing {least}")
    assert {cheat: reward for cheat, reward in rewards.items() if reward > least} == {}
