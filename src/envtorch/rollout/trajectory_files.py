"""Trajectories in a file: a JSON object a line, which `datasets` loads and a later run goes on from."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from envtorch import errors
from envtorch.errors import ConfigurationError
from envtorch.rollout.blame import NotAnAction
from envtorch.rollout.chat_formats import CutCompletion
from envtorch.rollout.record_lock import locked_record
from envtorch.rollout.record_settings import PlaySettings, refuse_other_settings
from envtorch.rollout.trajectories import (
    Ending,
    Task,
    Tokens,
    Trajectory,
    TrajectoryGroup,
    TurnRecord,
    plain_value,
)

__all__ = ["TrajectoryFile", "row_of"]


class TrajectoryFile:
    """A file that groups are added to as they finish.

    Opening and reading it changes nothing. A run that records to it first removes the groups that have to be
    played again: one that was not written to its end, because the writer was killed, and those with a member
    that the infrastructure lost. One run at a time may do so.

    The file belongs to the settings that it was begun with: they are in each of its rows.
    """

    def __init__(self, path: str | os.PathLike[str], *, mixed: bool = False) -> None:
        """`mixed` allows groups that are played with other settings in the same file."""
        self.path = Path(path)
        self._is_mixed = mixed
        self._settings: PlaySettings | None = None
        """Those of the groups in the file, or of those to come; None while neither is known."""
        self._recorded: PlaySettings | None = None
        """Those of the last group in the file."""
        self._finished: Counter[str] = Counter()
        """How many groups of each task there are that are not played again, by `_key`."""
        self._has_unfinished = False
        """Whether there are groups to be played again."""
        self._runs = 0
        """How many runs of this process record to it by this object."""
        self._counted: tuple[int, ...] | None = None
        """Which file was counted, and how long it was: what others add to it is counted when a run begins."""
        self._held = ExitStack()
        """The lock, while a run records."""
        self._count()

    @contextmanager
    def recording(self, settings: PlaySettings) -> Iterator[None]:
        """Hold the file for a run that adds groups of these settings.

        Raises `ConfigurationError` if those before are others, if another run adds to the file, or if it
        cannot be written.
        """
        told: PlaySettings = json.loads(json.dumps(dict(settings), default=plain_value))
        if self._runs == 0:
            self._held = self._locked(told)
        elif not self._is_mixed:
            refuse_other_settings(self.path, self._settings or {}, told)
        self._settings = told
        self._runs += 1
        try:
            yield
        finally:
            self._runs -= 1
            if self._runs == 0:
                self._held.close()

    def __contains__(self, task: Task) -> bool:
        """Whether a group of this task is in the file, and is not to be played again."""
        return _key(task) in self._finished

    def unplayed(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """The tasks without those in the file now: a task is left out as often as it is there."""
        played = self._finished.copy()
        for task in tasks:
            key = _key(task)
            if played[key]:
                played[key] -= 1
            else:
                yield task

    def __len__(self) -> int:
        """How many groups are in the file, without those that are to be played again."""
        return self._finished.total()

    def __iter__(self) -> Iterator[Trajectory]:
        """The trajectories, in the order they were added."""
        return map(_read, self.rows())

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines of the file, as they are; without a last one that is not written to its end."""
        if self.path.exists():
            with self.path.open() as lines:
                for line in lines:
                    if line.endswith("\n"):
                        yield json.loads(line)

    def add(self, group: TrajectoryGroup) -> None:
        """Write a group, and have it on the disk before this returns."""
        rows = [
            json.dumps(row_of(member, len(group), self._settings), default=plain_value) + "\n"
            for member in group
        ]
        is_lost = any(member.ending is Ending.LOST for member in group)
        with self._locked() if self._runs == 0 else nullcontext(), self.path.open("a") as file:
            is_counted = self._counted == self._version()
            file.write("".join(rows))
            file.flush()
            os.fsync(file.fileno())
            self._counted = self._version() if is_counted and not is_lost else None
        if not is_lost:
            self._finished[_key(group.task)] += 1
            self._recorded = self._settings

    def _locked(self, settings: PlaySettings | None = None) -> ExitStack:
        """A lock on the file, without the groups that have to be played again.

        With `settings`, those of a run that begins: it leaves out what others have added since the file was
        opened, and refuses other settings.
        """
        with ExitStack() as held:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked_record(self.path))
                if settings is not None:
                    if self._counted is None or self._counted != self._version():
                        self._count()
                    if self._recorded is not None and not self._is_mixed:
                        refuse_other_settings(self.path, self._recorded, settings)
                if self._has_unfinished:
                    self._remove_unfinished(held)
            except OSError as error:
                raise ConfigurationError(
                    f"{self.path} cannot be written: {error.strerror or error}",
                    next_step="record to a file in a directory that you may write to",
                ) from None
            return held.pop_all()

    def _count(self) -> None:
        """Count the groups, and find the settings of the last one."""
        self._finished.clear()
        self._recorded, self._has_unfinished = None, False
        self._counted = self._version()
        for _, row in self._groups():
            if row is None:
                self._has_unfinished = True
            else:
                self._finished[_key(_task(row["task"]))] += 1
                self._recorded = json.loads(row.get("settings") or "null")
        self._settings = self._recorded

    def _version(self) -> tuple[int, ...] | None:
        """What changes when somebody writes to the file; None while there is none."""
        if not self.path.exists():
            return None
        told = self.path.stat()
        return told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns

    def _remove_unfinished(self, held: ExitStack) -> None:
        """Put a copy without the groups that have to be played again in the file's place, locked as it is."""
        kept = self.path.with_name(f".{self.path.name}.kept")
        with kept.open("wb") as copy:
            for lines, row in self._groups():
                if row is not None:
                    copy.writelines(lines)
            copy.flush()
            os.fsync(copy.fileno())
        held.enter_context(locked_record(kept))
        kept.replace(self.path)
        self._has_unfinished = False
        self._counted = self._version()

    def _groups(self) -> Iterator[tuple[list[bytes], dict[str, Any] | None]]:
        """The lines of each group and its last row; None for one that has to be played again."""
        if not self.path.exists():
            return
        group: list[bytes] = []
        endings: set[str] = set()
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                group.append(line)
                if not line.endswith(b"\n"):
                    break
                try:
                    row = json.loads(line)
                    endings.add(row["ending"])
                    is_last = len(group) >= row["group_size"]
                except (ValueError, TypeError, KeyError):
                    raise ConfigurationError(
                        f"line {number} of {self.path} is no trajectory",
                        next_step="record to another file: this one is left as it is",
                    ) from None
                if is_last:
                    yield group, None if Ending.LOST in endings else row
                    group, endings = [], set()
        if group:
            yield group, None


def _key(task: Task) -> str:
    """What tells tasks apart: two with one id may have different contents."""
    return f"{task.id} {Task(task.options, task.prompt, data=task.data).id}"


def row_of(member: Trajectory, size: int, settings: PlaySettings | None = None) -> dict[str, Any]:
    blame = member.blame
    return {
        "task": {
            "id": member.task.id,
            "options": dict(member.task.options),
            "prompt": member.task.prompt,
            "data": json.dumps(dict(member.task.data), default=plain_value),
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
        "settings": None if settings is None else json.dumps(settings),
    }


def _task(told: Mapping[str, Any]) -> Task:
    return Task(told["options"], told["prompt"], told["id"], json.loads(told.get("data", "{}")))


def _read(row: dict[str, Any]) -> Trajectory:
    return Trajectory(
        _task(row["task"]),
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
    for refused in (NotAnAction, CutCompletion):
        if told["kind"] == refused.__name__:
            return refused(told["message"])
    kind = getattr(errors, told["kind"], errors.EnvTorchError)
    error: errors.EnvTorchError = kind(told["message"])
    return error
