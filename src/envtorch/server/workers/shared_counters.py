"""A page of memory that the master and its workers share: numbers that are read often and never asked for."""

import mmap
import os
import tempfile

__all__ = ["Page", "WorkerNumbers"]

_SHARED = 3
_PER_WORKER = 2


class WorkerNumbers:
    """One worker's part of the page: only that worker writes it."""

    def __init__(self, cells: memoryview, first: int) -> None:
        self._cells = cells
        self._first = first

    @property
    def connections(self) -> int:
        """How many connections it has open."""
        return int(self._cells[self._first])

    @connections.setter
    def connections(self, count: int) -> None:
        self._cells[self._first] = count

    @property
    def received(self) -> int:
        """How many connections it was ever handed, and has taken."""
        return int(self._cells[self._first + 1])

    @received.setter
    def received(self, count: int) -> None:
        self._cells[self._first + 1] = count


class Page:
    """Aligned eight-byte numbers, each with one writer, so nothing is locked."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self._cells = memoryview(mmap.mmap(descriptor, _size(workers))).cast("q")

    @classmethod
    def new(cls, workers: int) -> "Page":
        with tempfile.TemporaryFile() as file:
            file.truncate(_size(workers))
            return cls(os.dup(file.fileno()), workers)

    @property
    def taken(self) -> int:
        """How many slots of the whole server are taken: the master writes it."""
        return int(self._cells[0])

    @taken.setter
    def taken(self, count: int) -> None:
        self._cells[0] = count

    @property
    def is_stopping(self) -> bool:
        """Whether the whole server is about to stop: the master writes it."""
        return bool(self._cells[2])

    @is_stopping.setter
    def is_stopping(self, stopping: bool) -> None:
        self._cells[2] = int(stopping)

    @property
    def workers(self) -> int:
        """How many workers serve: the master writes it."""
        return int(self._cells[1])

    @workers.setter
    def workers(self, count: int) -> None:
        self._cells[1] = count

    def worker(self, number: int) -> WorkerNumbers:
        return WorkerNumbers(self._cells, _SHARED + number * _PER_WORKER)


def _size(workers: int) -> int:
    return 8 * (_SHARED + workers * _PER_WORKER)
