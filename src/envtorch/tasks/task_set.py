"""A dataset of typed tasks, in splits."""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from envtorch.errors import ConfigurationError, InvalidAction
from envtorch.tasks.hidden_fields import HiddenFields
from envtorch.tasks.task_sources import Rows, TaskSource, open_rows

__all__ = ["TaskEntry", "TaskSet"]

TaskT = TypeVar("TaskT")


@dataclass(frozen=True, slots=True)
class TaskEntry(Generic[TaskT]):
    """One task, and where it stands."""

    id: str
    """`split/name`: the name is the row's own `id`, or else its place in the split."""
    hash: str
    """Of the task's fields that are not hidden, the same for the same contents on any machine. It is served,
    so it does not depend on what is hidden: a short answer could be found by trying."""
    task: TaskT


class TaskSet(Generic[TaskT]):
    """The tasks of an environment, which reads them when they are needed.

        class Sum(BaseModel):
            question: str
            answer: int

        class Sums(Environment[Reply, Seen, State]):
            tasks = TaskSet(Sum, {"train": HERE / "train.jsonl", "test": [Sum(...)]}, hidden=["answer"])

            def reset(self, task: Sum) -> Seen: ...

    An environment with such an attribute has task routes, and its `reset(task=...)` is given a task: a caller
    names it by its id. Reading a set is safe from several threads; it is never changed.
    """

    def __init__(
        self,
        kind: type[TaskT],
        source: TaskSource | Mapping[str, TaskSource],
        *,
        hidden: Iterable[str] = (),
    ) -> None:
        """`source` is where the tasks of each split come from; a source by itself is the split `test`.

        kind: the class of a task: a pydantic model, a dataclass, a TypedDict or `dict`.
        hidden: fields that the task routes leave out, such as the answer, by their names in the class (not an
            alias, nor a path such as `a.b`). Tasks with hidden fields can be named by a caller, but not
            sent. Raises `ConfigurationError` for a name that is not a field; in a set of `dict`, where the
            fields are not known before, a task without that field is refused when it is read.
        """
        sources = source if isinstance(source, Mapping) else {"test": source}
        if not sources:
            raise ConfigurationError("a task set has at least one split")
        wrong = [name for name in sources if not name or "/" in name]
        if wrong:
            raise ConfigurationError(f"a split cannot be called {wrong[0]!r}: a name without a slash")
        self._adapter: TypeAdapter[TaskT] = TypeAdapter(kind)
        self._hidden = HiddenFields(kind, self._adapter, hidden)
        self._splits = {
            name: _Split(name, open_rows(rows), self._adapter, self._hidden) for name, rows in sources.items()
        }

    @property
    def splits(self) -> Sequence[str]:
        """The names of the splits."""
        return tuple(self._splits)

    def entry(self, id: str) -> TaskEntry[TaskT]:
        """The task of this id. Raises `InvalidAction` when there is none."""
        split, separator, name = id.partition("/")
        if not separator:
            raise InvalidAction(f"{id!r} is not the id of a task: ids are like {next(iter(self._splits))}/0")
        return self._split(split).named(name)

    def entries(
        self, split: str | None = None, start: int | None = None, stop: int | None = None
    ) -> Iterator[TaskEntry[TaskT]]:
        """Tasks in order, of one split or of all. Raises `InvalidAction` for bounds out of range."""
        for bound in (start or 0, stop or 0):
            if not 0 <= bound <= sys.maxsize:
                raise InvalidAction(f"start and stop are numbers from 0 to {sys.maxsize}")
        for one in self._splits.values() if split is None else [self._split(split)]:
            yield from one.entries(start or 0, stop)

    def __iter__(self) -> Iterator[TaskT]:
        return (entry.task for entry in self.entries())

    def __len__(self) -> int:
        return sum(len(split.rows) for split in self._splits.values())

    def load(self) -> Self:
        """Read and check every task now, rather than when it is needed. Raises `ConfigurationError`."""
        for split in self._splits.values():
            split.check()
        return self

    def find_task(self, given: Any) -> Any:
        """What `reset(task=given)` means: a task by its id, or as the task routes gave it, or contents.

        Contents are returned as they are, for `reset` to validate. Raises `InvalidAction` for an id that is
        not there, for a task whose public fields have changed since it was served, and for contents where
        fields are hidden.
        """
        if isinstance(given, str):
            return self.entry(given).task
        if isinstance(given, Mapping) and given.keys() >= {"id", "hash"}:
            entry = self.entry(str(given["id"]))
            if entry.hash != given["hash"]:
                raise InvalidAction(
                    f"the task {entry.id} has changed since it was asked for: ask for it again"
                )
            return entry.task
        if self._hidden and given is not None:
            raise InvalidAction("this environment's tasks are named by their id, as in reset(task='test/0')")
        return given

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    # The task routes: what `TaskProvider` has.

    def list_splits(self) -> Sequence[str]:
        """The names of the splits."""
        return self.splits

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        return len(self._split(split).rows)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One task: its id, its hash, and its fields that are not hidden."""
        if index < 0:
            raise IndexError(index)
        return self._served(self._split(split).at(index))

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """The tasks from `start` up to `stop`."""
        if (start or 0) < 0 or (stop or 0) < 0:
            raise IndexError(min(start or 0, stop or 0))
        return [self._served(entry) for entry in self.entries(split, start, stop)]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Every task of a split."""
        return self.get_task_range(split)

    def _served(self, entry: TaskEntry[TaskT]) -> dict[str, Any]:
        return {"id": entry.id, "hash": entry.hash, "task": self._hidden.public(entry.task)}

    def _split(self, name: str) -> "_Split[TaskT]":
        if name not in self._splits:
            raise InvalidAction(f"there is no split {name!r}; there is {', '.join(self._splits)}")
        return self._splits[name]


class _Split(Generic[TaskT]):
    def __init__(
        self, name: str, rows: Rows, adapter: TypeAdapter[TaskT], hidden: HiddenFields[TaskT]
    ) -> None:
        self._name = name
        self.rows = rows
        self._adapter = adapter
        self._hidden = hidden

    def at(self, index: int) -> TaskEntry[TaskT]:
        return self._entry(index, self.rows[index])

    def entries(self, start: int, stop: int | None) -> Iterator[TaskEntry[TaskT]]:
        for index, row in islice(enumerate(self.rows), start, stop):
            yield self._entry(index, row)

    def named(self, name: str) -> TaskEntry[TaskT]:
        place = self._places.get(name) if self._has_names else _index_named(name)
        try:
            if place is not None:
                return self.at(place)
        except IndexError:
            pass
        told = name if len(name) <= 100 else f"{name[:100]}..."
        raise InvalidAction(f"there is no task {self._name}/{told}: the split has {len(self.rows)} tasks")

    def check(self) -> None:
        for _ in self.entries(0, None):
            pass
        if self._has_names:
            _ = self._places

    @cached_property
    def _has_names(self) -> bool:
        """Whether the rows have an `id`, as the first one has."""
        return next((_own_id(row) is not None for row in self.rows), False)

    @cached_property
    def _places(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for index, row in enumerate(self.rows):
            name = self._name_of(index, row)
            if name in found:
                places = f"{self.rows.place(index)}, and {self.rows.place(found[name])}"
                raise ConfigurationError(f"two tasks have the id {name!r}: {places}")
            found[name] = index
        return found

    def _name_of(self, index: int, row: Any) -> str:
        if not self._has_names:
            return str(index)
        own = _own_id(row)
        if own is None:
            raise ConfigurationError(f"{self.rows.place(index)}: this task has no `id`, and others have")
        return own

    def _entry(self, index: int, row: Any) -> TaskEntry[TaskT]:
        try:
            task = self._adapter.validate_python(row)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = ".".join(map(str, problem["loc"]))
            told = f"{field}: {problem['msg']}" if field else problem["msg"]
            raise ConfigurationError(f"{self.rows.place(index)}: this is not a task: {told}") from None
        try:
            contents = json.dumps(self._hidden.public(task), sort_keys=True)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.rows.place(index)}: {error}") from None
        digest = hashlib.sha256(contents.encode()).hexdigest()[:16]
        return TaskEntry(f"{self._name}/{self._name_of(index, row)}", digest, task)


def _index_named(name: str) -> int | None:
    """The place that an id names, if it is a number as `str` writes it."""
    if len(name) > len(str(sys.maxsize)) or not name.isdecimal() or name != str(int(name)):
        return None
    return int(name)


def _own_id(row: Any) -> str | None:
    own = row.get("id") if isinstance(row, Mapping) else getattr(row, "id", None)
    return str(own) if own not in (None, "") else None
