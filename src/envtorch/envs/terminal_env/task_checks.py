"""Whether tasks are sound: the solution scores 1, nothing scores less, and the agent cannot read the
tests."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envtorch.envs.terminal_env.episode_tasks import EpisodeTask
from envtorch.envs.terminal_env.harbor import GradingPlan, HarborTask, load_task
from envtorch.errors import EnvironmentFailed, EnvTorchError, OutOfResources, SessionLost
from envtorch.sandbox import Policy

__all__ = ["TaskFindings", "check_task"]

_TOLD_CHARACTERS = 600
_LEAST_BYTES = 24
"""Files shorter than this are alike by chance."""


@dataclass(frozen=True, slots=True)
class TaskFindings:
    """What is wrong with a task; nothing, when it is sound."""

    name: str
    problems: tuple[str, ...]
    solution_reward: float | None = None
    nothing_reward: float | None = None

    @property
    def ok(self) -> bool:
        return not self.problems


def check_task(folder: Path, policy: Policy, *, grading: GradingPlan | None = None) -> TaskFindings:
    """Build a task, grade it untouched and grade its solution; by `grading`, if the task chooses no plan.
    Whatever keeps it from being played is a problem of it, so that others can be checked as well."""
    problems: list[str] = []
    try:
        task = load_task(folder, grading=grading)
        problems += [*task.misspelt_keys, *_leaks(task)]
        episode = EpisodeTask.of(task, policy)
        problems += _open_leaks(episode)
        return _played(episode, problems)
    except (EnvTorchError, OSError) as error:
        return TaskFindings(folder.name, (*problems, str(error)))


def _played(episode: EpisodeTask, problems: list[str]) -> TaskFindings:
    task = episode.task
    nothing, why = _play(episode, solve=False)
    if nothing is None:
        problems.append(f"with nothing done: {why}")
    elif nothing >= 1.0:
        problems.append(f"nothing was done, and the reward is {nothing:g}: the tests pass without any work")
    if not task.has_solution:
        return TaskFindings(task.name, (*problems, "there is no solution/solve.sh to play"), None, nothing)
    solved, why = _play(episode, solve=True)
    if solved is None:
        problems.append(f"with the solution: {why}")
    elif solved != 1.0:
        problems.append(f"the solution scores {solved:g}, not 1: {why}")
    return TaskFindings(task.name, tuple(problems), solved, nothing)


def _play(episode: EpisodeTask, *, solve: bool) -> tuple[float | None, str]:
    """The reward, or None; and what was written on the way."""
    with episode.open() as workspace:
        said = episode.solve(workspace) if solve else ""
        try:
            graded = episode.grade(workspace)
        except (EnvironmentFailed, OutOfResources, SessionLost) as error:
            return None, f"{error} {error.details.get('output', '')}".strip()[-_TOLD_CHARACTERS:]
        told = f"{said}\n{graded.output}".strip()[-_TOLD_CHARACTERS:]
        return graded.reward, "\n".join(filter(None, [graded.why, told, graded.advice]))


def _leaks(task: HarborTask) -> Iterator[str]:
    """Files of the tests or the solution that are in the environment, too. A file of the tests that the
    instruction names is an input: the agent is given it, and the tests have a copy that it cannot change."""
    secrets = {_digest(path): path for part in ("tests", "solution") for path in _files(task.folder / part)}
    for path in _files(task.folder / "environment"):
        other = secrets.get(_digest(path)) if path.stat().st_size >= _LEAST_BYTES else None
        if other is None:
            continue
        one, same = (found.relative_to(task.folder).as_posix() for found in (path, other))
        if same.startswith("solution/") or path.name not in task.instruction:
            yield f"the agent can read {one}, which is the same as {same}"


def _open_leaks(episode: EpisodeTask) -> list[str]:
    """Directories in the image that only a grade should have."""
    with episode.open() as workspace:
        seen = workspace.execute(
            ["/bin/bash", "-c", "for p in /tests /solution; do [ -e $p ] && echo $p; done"]
        )
    return [f"the image has {path}, which the agent can read" for path in seen.stdout.decode().split()]


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
