"""An evaluation in a directory: played, interrupted, gone on with, reported."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.evaluation.eval_report import EvalReport
from envtorch.evaluation.report_page import report_page
from envtorch.rollout import Rollouts, Task, TrajectoryFile, TrajectoryGroup

__all__ = ["Evaluation", "EvaluationSettings"]


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What is evaluated. Trajectories of other settings are not mixed with these."""

    target: str
    model: str
    samples: int = 8
    passes_at: float = 1.0
    """The reward from which on a sample passes."""
    max_turns: int = 20
    temperature: float = 1.0
    max_tokens: int = 1024
    step_timeout_s: float | None = None
    scorer: str | None = None
    price_in: float | None = None
    """For a million tokens that the model reads."""
    price_out: float | None = None
    """For a million that it says."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.max_turns < 1:
            raise ConfigurationError("an evaluation has at least one sample of a task, and one turn")


_NOT_PLAYED = ("passes_at", "price_in", "price_out")
"""Settings that only the report depends on: they may change between runs."""


class Evaluation:
    """Plays tasks, and keeps what was played in a directory: `trajectories.jsonl`, and the reports.

        evaluation = Evaluation("results", EvaluationSettings("coding_env", "my-model"), tasks)
        async with Rollouts(...) as rollouts:
            report = await evaluation.run(rollouts)

    Started again with the same settings, it goes on where it was interrupted; with more tasks, it plays those
    that are new.
    """

    def __init__(self, directory: Path | str, settings: EvaluationSettings, tasks: Sequence[Task]) -> None:
        """Raises `ConfigurationError` when the directory has another evaluation in it."""
        self.directory = Path(directory)
        self.settings = settings
        self.tasks = list(tasks)
        names = [task.id for task in self.tasks]
        if not names:
            raise ConfigurationError("there is no task to play")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"two tasks have the id {twice!r}")
        self._tasks_before = self._check_directory()
        """The contents of the tasks of earlier runs, by their ids."""
        self._file = TrajectoryFile(self.directory / "trajectories.jsonl")

    @property
    def done(self) -> int:
        """How many tasks have been played."""
        return sum(task in self._file for task in self.tasks)

    async def run(
        self, rollouts: Rollouts, *, on_group: Callable[[TrajectoryGroup], None] | None = None
    ) -> EvalReport:
        """Play what has not been played; then write the reports. `on_group` is called as groups finish."""
        self._write_settings()
        began = time.monotonic()
        try:
            playing = rollouts.groups(self.tasks, size=self.settings.samples, record=self._file)
            async for group in playing:
                if on_group is not None:
                    on_group(group)
        finally:
            with (self.directory / "runs.jsonl").open("a") as runs:
                runs.write(json.dumps({"seconds": time.monotonic() - began}) + "\n")
        return self.write_report()

    def report(self) -> EvalReport:
        """What has been played so far."""
        runs = self.directory / "runs.jsonl"
        lines = runs.read_text().splitlines() if runs.exists() else []
        seconds = sum(float(json.loads(line)["seconds"]) for line in lines)
        return EvalReport.of(asdict(self.settings), self.tasks, list(self._file), seconds=seconds)

    def write_report(self) -> EvalReport:
        """Write `report.json` and `report.html`."""
        report = self.report()
        (self.directory / "report.json").write_text(json.dumps(report.told(), indent=2) + "\n")
        (self.directory / "report.html").write_text(report_page(report))
        return report

    def _write_settings(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            told = self._identity()
            told["tasks"] = {**self._tasks_before, **told["tasks"]}
            (self.directory / "settings.json").write_text(json.dumps(told, indent=2) + "\n")
        except OSError as error:
            raise ConfigurationError(
                f"{self.directory} cannot be written: {error.strerror or error}",
                next_step="name a directory that you may write to: --output DIR",
            ) from None

    def _identity(self) -> dict[str, Any]:
        played = {name: value for name, value in asdict(self.settings).items() if name not in _NOT_PLAYED}
        contents = {task.id: Task(task.options, task.prompt, data=task.data).id for task in self.tasks}
        return {**played, "tasks": contents}

    def _check_directory(self) -> dict[str, str]:
        """Refuse a directory of other settings. The tasks that it has, with their contents."""
        path = self.directory / "settings.json"
        if not path.exists():
            return {}
        try:
            before = json.loads(path.read_text())
            if not isinstance(before, dict):
                raise ValueError("it is no JSON object")
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error}",
                next_step="choose another --output, or remove the directory",
            ) from None
        now = json.loads(json.dumps(self._identity()))
        tasks, tasks_before = now.pop("tasks"), before.pop("tasks", {})
        changed = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
        changed += [f"the task {id}" for id in tasks if tasks_before.get(id, tasks[id]) != tasks[id]]
        if changed:
            raise ConfigurationError(
                f"{self.directory} holds an evaluation with other settings: {', '.join(changed)}",
                next_step="choose another --output, or start over with --fresh",
            )
        return dict(tasks_before)
