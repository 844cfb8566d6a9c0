"""A progress bar for groups that are played."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from envtorch.rollout.trajectories import Ending, TrajectoryGroup

if TYPE_CHECKING:
    from rich.progress import TaskID

__all__ = ["RolloutProgress", "with_progress"]


class RolloutProgress:
    """A bar on a terminal: groups played, the mean reward so far, and endings that are not `done`."""

    def __init__(self, total: int | None, *, done: int = 0, console: Console | None = None) -> None:
        """`total` is how many groups there will be, `done` how many of them are there already."""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._bar: TaskID = self._progress.add_task("rollouts", total=total, completed=done, figures="")
        self._rewards: list[float] = []
        self._endings: Counter[Ending] = Counter()

    def __enter__(self) -> "RolloutProgress":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def add(self, group: TrajectoryGroup) -> None:
        """One more group was played."""
        self._rewards += [reward for reward in group.rewards if reward is not None]
        self._endings.update(member.ending for member in group)
        self._progress.update(self._bar, advance=1, figures=self.figures)

    @property
    def figures(self) -> str:
        """What is told beside the bar."""
        mean = f"reward {sum(self._rewards) / len(self._rewards):.3f}" if self._rewards else ""
        others = [
            f"{ending} {count}" for ending, count in sorted(self._endings.items()) if ending != Ending.DONE
        ]
        return "  ".join(text for text in (mean, *others) if text)


async def with_progress(
    groups: AsyncIterator[TrajectoryGroup], total: int | None = None, *, console: Console | None = None
) -> AsyncIterator[TrajectoryGroup]:
    """The same groups, with a progress bar on the terminal while they are waited for.

    async for group in with_progress(rollouts.groups(tasks), len(tasks)):
        ...
    """
    with RolloutProgress(total, console=console) as progress:
        async for group in groups:
            progress.add(group)
            yield group
