"""The task of one episode, and the directories that tasks are found in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from envtorch.envs.terminal_env.harbor import (
    BUNDLED,
    GRADING_PLANS,
    GradingPlan,
    HarborTask,
    find_tasks,
    load_task,
)
from envtorch.envs.terminal_env.task_grading import Grade, grade
from envtorch.envs.terminal_env.task_images import TaskImage, image_for, policy_for
from envtorch.errors import ConfigurationError, InvalidAction
from envtorch.sandbox import Policy, Workspace

__all__ = ["EpisodeTask", "ServedTask", "TaskFolder"]


class ServedTask(TypedDict):
    """A task as the task routes tell it; a caller gives it back to have the very same one."""

    id: str
    hash: str


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """A task, its image, and the limits of its episodes."""

    task: HarborTask
    image: TaskImage
    policy: Policy

    @classmethod
    def of(cls, task: HarborTask, policy: Policy) -> "EpisodeTask":
        """Build the task's image if need be."""
        return cls(task, image_for(task, policy), policy_for(task, policy))

    @property
    def instruction(self) -> str:
        return self.task.instruction

    def open(self) -> Workspace:
        """A fresh session in the task's environment."""
        return Workspace(
            self.policy,
            environment=self.image.environment,
            directory=self.image.directory,
            user=self.image.user,
            layers=self.image.layers,
        )

    def grade(self, workspace: Workspace) -> Grade:
        """Grade what is in a session. It cannot be used afterwards."""
        return grade(self.task, self.image, workspace, self.policy)

    def solve(self, workspace: Workspace) -> str:
        """Run the task's own solution in a session; answers with what it wrote."""
        for path in sorted((self.task.folder / "solution").rglob("*")):
            if path.is_file():
                place = path.relative_to(self.task.folder / "solution").as_posix()
                workspace.write_file(f"/solution/{place}", path.read_bytes(), user="root")
        done = workspace.execute(
            ["/bin/bash", "/solution/solve.sh"],
            environment={"DEBIAN_FRONTEND": "noninteractive", **self.task.file.solution.env},
            timeout_s=self.task.file.agent.timeout_sec or self.policy.timeout_s,
        )
        return (done.stdout + done.stderr).decode(errors="replace")


class TaskFolder:
    """The tasks of a server: those of a directory, or those that come with EnvTorch. `grading` is the plan of
    those that choose none."""

    SPLIT = "tasks"

    def __init__(self, place: str | Path | None, *, grading: GradingPlan | None = None) -> None:
        if grading is not None and grading not in GRADING_PLANS:
            raise ConfigurationError(
                f"there is no grading {grading!r}; there are: {', '.join(GRADING_PLANS)}"
            )
        self.place = None if place is None else Path(place)
        self.grading = grading
        folder = BUNDLED if self.place is None else self.place
        self._found: Mapping[str, Path] = {path.name: path for path in find_tasks(folder)}
        if self.place is not None and not self._found:
            raise ConfigurationError(f"{place} has no tasks: directories with a task.toml")

    def names(self, split: str) -> list[str]:
        if split != self.SPLIT:
            raise InvalidAction(f"there is no split {split!r}: it is {self.SPLIT!r}")
        return list(self._found)

    def described(self, name: str) -> dict[str, Any]:
        """What a client may know of a task: nothing of its tests and its solution."""
        task = self._load(name)
        return {"id": name, "hash": task.digest, "task": {"instruction": task.instruction}}

    def begin(self, wanted: str | ServedTask, policy: Policy) -> EpisodeTask:
        """The task of that name, ready to be played. A client names tasks; it cannot name other
        directories. Raises `InvalidAction` for one that has changed since it was served."""
        name = wanted if isinstance(wanted, str) else wanted["id"]
        task = self._load(name.removeprefix(f"{self.SPLIT}/"))
        if not isinstance(wanted, str) and wanted["hash"] != task.digest:
            raise InvalidAction(f"the task {task.name} has changed since it was asked for: ask for it again")
        return EpisodeTask.of(task, policy)

    def _load(self, name: str) -> HarborTask:
        if name not in self._found:
            known = ", ".join(list(self._found)[:20])
            raise InvalidAction(f"there is no task {name!r}; there are: {known}")
        return load_task(self._found[name], grading=self.grading)
