"""Where tasks come from: a list, a function, a JSONL or Parquet file, the Hugging Face hub."""

import json
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from envtorch.errors import ConfigurationError, MissingExtra
from envtorch.extras import missing_extra

__all__ = ["HubDataset", "Rows", "TaskSource", "open_rows", "source_named"]


@dataclass(frozen=True, slots=True)
class HubDataset:
    """One split of a dataset on the Hugging Face hub. Downloaded when its first row is needed."""

    name: str
    config: str | None = None
    split: str = "test"
    revision: str | None = None
    """A branch, a tag or a commit. Pin a commit for results that can be compared."""


TaskSource = str | os.PathLike[str] | HubDataset | Sequence[Any] | Callable[[], Iterable[Any]]
"""A path that ends in `.jsonl` or `.parquet`, a dataset of the hub, a list, or a function that gives an
iterable, such as a generator function. A function is called again after its iterable has failed, and then
gives the same rows in the same order. Rows are tasks of the set's class, or mappings with its fields."""


class Rows(Protocol):
    """Rows that are read when they are needed."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def place(self, index: int) -> str:
        """Where a row stands, for error messages."""


def open_rows(source: TaskSource) -> Rows:
    """The rows of a source. Nothing is read yet, but a path that cannot be a file of tasks is refused."""
    if isinstance(source, HubDataset):
        return HubRows(source)
    if isinstance(source, str | os.PathLike):
        return _file_rows(Path(source))
    if callable(source):
        return GivenRows(source)
    if isinstance(source, Sequence):
        return GivenRows(lambda: source)
    raise ConfigurationError(
        f"tasks cannot come from a {type(source).__name__}: give a list, a function that returns an "
        "iterable, a path that ends in .jsonl or .parquet, or a HubDataset"
    )


def source_named(text: str) -> TaskSource:
    """The source that a command line names: a path, or `hf:NAME[:CONFIG[:SPLIT]]`."""
    if not text.startswith("hf:"):
        _file_rows(Path(text))
        return text
    name, *rest = text[3:].split(":")
    if not name or len(rest) > 2:
        raise ConfigurationError(
            f"{text!r} names no dataset: write hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG:SPLIT"
        )
    config, split = [*rest, "", ""][:2]
    return HubDataset(name, config or None, split or "test")


def _file_rows(path: Path) -> Rows:
    kinds: dict[str, Callable[[Path], Rows]] = {".jsonl": JSONLinesRows, ".parquet": ParquetRows}
    if path.suffix not in kinds:
        raise ConfigurationError(
            f"{path}: a file of tasks ends in .jsonl or .parquet, not in {path.suffix!r}"
        )
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    return kinds[path.suffix](path)


class GivenRows:
    """Rows of an iterable. A function's is read as far as it is needed, and kept.

    An iterable that raises an error is dropped, and the next access calls the function again. What was kept
    stays, and that many rows of the new iterable are passed over.
    """

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make
        self._kept: list[Any] = []
        self._rest: Iterator[Any] | None = None
        self._failed: Iterator[Any] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: int) -> Any:
        while len(self._kept) <= index:
            if not self._read():
                raise IndexError(index)
        return self._kept[index]

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self._kept) or self._read():
            yield self._kept[index]
            index += 1

    def place(self, index: int) -> str:
        return f"task {index}"

    def _read(self) -> bool:
        """Keep one row more, if there is one. Several threads may read."""
        with self._lock:
            if self._rest is None:
                self._rest = self._begin()
            try:
                self._kept.append(next(self._rest))
            except StopIteration:
                return False
            except BaseException:
                self._rest, self._failed = None, self._rest
                raise
            return True

    def _begin(self) -> Iterator[Any]:
        """A new iterator, which stands after the rows that are kept."""
        rest = iter(self._make())
        if rest is self._failed:
            raise ConfigurationError(
                "tasks cannot be read on after an error: the function returned the iterator that failed; "
                "return a new one from each call"
            )
        for index in range(len(self._kept)):
            try:
                next(rest)
            except StopIteration:
                raise ConfigurationError(
                    f"the function gave {index} tasks when it was called again after an error, and at least "
                    f"{len(self._kept)} before: it has to give the same tasks each time"
                ) from None
        return rest


class JSONLinesRows:
    """A JSON object a line. Where lines begin is found in one pass; a line is parsed when it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _lines(self) -> list[tuple[int, int]]:
        """Each line that is not blank: its number, and where it begins."""
        found, begins = [], 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append((number, begins))
                begins += len(line)
        return found

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Any:
        with self._path.open("rb") as file:
            file.seek(self._lines[index][1])
            return self._parse(index, file.readline())

    def __iter__(self) -> Iterator[Any]:
        with self._path.open("rb") as file:
            for index, (_, begins) in enumerate(self._lines):
                file.seek(begins)
                yield self._parse(index, file.readline())

    def place(self, index: int) -> str:
        return f"{self._path}, line {self._lines[index][0]}"

    def _parse(self, index: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise ConfigurationError(f"{self.place(index)}: this is not JSON: {error}") from None


class ParquetRows:
    """A row group of a Parquet file is read when one of its rows is needed; the last one read is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._group: tuple[int, list[Any]] = (-1, [])

    @cached_property
    def _file(self) -> Any:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise missing_extra("record", "tasks in Parquet need the pyarrow package") from error
        try:
            return pq.ParquetFile(self._path)
        except pa.ArrowException as error:
            raise ConfigurationError(f"{self._path}: this is not a Parquet file: {error}") from None

    @cached_property
    def _ends(self) -> list[int]:
        """The number of rows up to the end of each row group."""
        metadata = self._file.metadata
        return list(accumulate(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        group = bisect_right(self._ends, index)
        if group == len(self._ends):
            raise IndexError(index)
        number, rows = self._group
        if number != group:
            rows = self._file.read_row_group(group).to_pylist()
            self._group = (group, rows)
        return rows[index - (self._ends[group - 1] if group else 0)]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> str:
        return f"{self._path}, row {index}"


class HubRows:
    """A split of a dataset on the hub, as `datasets` keeps it on the disk."""

    def __init__(self, source: HubDataset) -> None:
        self._source = source

    @cached_property
    def _rows(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise MissingExtra("tasks of the hub need: pip install datasets") from error
        source = self._source
        try:
            return datasets.load_dataset(
                source.name, source.config, split=source.split, revision=source.revision
            )
        except (ValueError, OSError) as error:  # of the hub, and of the network
            raise ConfigurationError(f"the dataset {source.name} cannot be loaded: {error}") from error

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        row: Mapping[str, Any] = self._rows[index]
        return row

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def place(self, index: int) -> str:
        return f"{self._source.name}, {self._source.split} {index}"
