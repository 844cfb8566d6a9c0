"""Trajectories in a file: a JSON object a line, which `datasets` loads and a later run goes on from."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envtorch import errors
from envtorch.rollout.blame import NotAnAction
from envtorch.rollout.trajectories import Ending, Task, Tokens, Trajectory, TrajectoryGroup, TurnRecord

__all__ = ["TrajectoryFile", "row_of"]


class TrajectoryFile:
    """A file that groups are added to as they finish.

    When the file is opened again, groups that have to be played again are removed: one that was not written
    to its end, because the writer was killed, and those with a member that the infrastructure lost.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._finished: Counter[str] = Counter()
        if self.path.exists():
            self._recover()

    def __contains__(self, task: Task) -> bool:
        """Whether a group of this task is in the file."""
        return task.id in self._finished

    def __len__(self) -> int:
        """How many groups are in the file."""
        return self._finished.total()

    def __iter__(self) -> Iterator[Trajectory]:
        """The trajectories, in the order they were added."""
        return map(_read, self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines of the file, as they are."""
        if self.path.exists():
            with self.path.open() as lines:
                for line in lines:
                    yield json.loads(line)

    def add(self, group: TrajectoryGroup) -> None:
        """Write a group, and have it on the disk before this returns."""
        rows = [json.dumps(row_of(member, len(group))) + "\n" for member in group]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write("".join(rows))
            file.flush()
            os.fsync(file.fileno())
        self._finished[group.task.id] += 1

    def _recover(self) -> None:
        """Count the groups, and remove those that have to be played again."""
        kept = self.path.with_name(f".{self.path.name}.kept")
        group: list[bytes] = []
        endings: set[str] = set()
        with self.path.open("rb") as lines, kept.open("wb") as copy:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                row = json.loads(line)
                group.append(line)
                endings.add(row["ending"])
                if len(group) < row["group_size"]:
                    continue
                if Ending.LOST not in endings:
                    copy.writelines(group)
                    self._finished[row["task"]["id"]] += 1
                group, endings = [], set()
            copy.flush()
            os.fsync(copy.fileno())
        kept.replace(self.path)


def row_of(member: Trajectory, size: int) -> dict[str, Any]:
    blame = member.blame
    return {
        "task": {
            "id": member.task.id,
            "options": dict(member.task.options),
            "prompt": member.task.prompt,
            "data": json.dumps(dict(member.task.data)),
        },
        "member": member.member,
        "group_size": size,
        "ending": str(member.ending),
        "reward": member.reward,
        "score": member.score,
        "blame": {"kind": type(blame).__name__, "message": str(blame)} if blame is not None else None,
        "lost": [{"kind": type(error).__name__, "message": error.message} for error in member.lost],
        "messages": list(member.messages),
        "ids": list(member.tokens.ids),
        "mask": list(member.tokens.mask),
        "logprobs": list(member.tokens.logprobs),
        "versions": list(member.tokens.versions),
        "turns": [dataclasses.asdict(turn) for turn in member.turns],
    }


def _read(row: dict[str, Any]) -> Trajectory:
    return Trajectory(
        Task(
            row["task"]["options"],
            row["task"]["prompt"],
            row["task"]["id"],
            json.loads(row["task"].get("data", "{}")),
        ),
        row["member"],
        Ending(row["ending"]),
        tuple(row["messages"]),
        Tokens(*(tuple(row[column]) for column in ("ids", "mask", "logprobs", "versions"))),
        tuple(TurnRecord(**turn) for turn in row["turns"]),
        blame=_error(row["blame"]) if row["blame"] is not None else None,
        score=row.get("score"),
        lost=tuple(error for told in row["lost"] if isinstance(error := _error(told), errors.EnvTorchError)),
    )


def _error(told: dict[str, str]) -> Exception:
    if told["kind"] == NotAnAction.__name__:
        return NotAnAction(told["message"])
    kind = getattr(errors, told["kind"], errors.EnvTorchError)
    error: errors.EnvTorchError = kind(told["message"])
    return error
