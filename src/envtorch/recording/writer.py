"""Writes the lines of a recording to a file, on a thread of its own, so that no call waits for the disk."""

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["LineWriter", "Render"]

logger = logging.getLogger(__name__)

BACKLOG_BYTES = 256 * 1024 * 1024
"""How much may wait to be written before lines are dropped."""

RETRY_S = 1.0
"""How often a disk that refused a write is tried again while nothing new comes."""

Render = Callable[[], bytes]


class _Waiting(NamedTuple):
    episode: int
    size: int
    render: Render


class LineWriter:
    """Appends lines to one file, in order.

    Each batch is one write, and what could be written only in part is cut off again, so the file holds whole
    lines; after a kill at most the last one is torn. Lines that the disk refuses, that cannot be rendered, or
    for which there is no room in the backlog, are counted by episode, and `describe_loss` renders the line
    that says so once writing is possible again. `problem` says why nothing can be written at the moment.
    """

    def __init__(
        self,
        path: Path,
        *,
        first_line: bytes,
        describe_loss: Callable[[Mapping[int, int]], bytes],
        backlog_bytes: int = BACKLOG_BYTES,
    ) -> None:
        self.path = path
        self.problem: str | None = None
        self.dropped = 0
        """How many lines were dropped since the beginning."""
        self._first_line = first_line
        self._describe_loss = describe_loss
        self._limit = backlog_bytes
        self._file: int | None = None
        self._written = 0
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._refused: Counter[int] = Counter()
        """Lines missing from the file before those that wait, by episode."""
        self._overflowed: Counter[int] = Counter()
        """Lines missing after those that wait, by episode."""
        self._is_behind = False
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"recording {path.name}", daemon=True)
        self._thread.start()

    def put(self, episode: int, size: int, render: Render) -> None:
        """Have the line that `render` returns written. `render` is called on the writer's thread.

        `size` is about how much memory the line holds while it waits.
        """
        with self._changed:
            self._is_behind = self._is_behind and self._bytes * 2 >= self._limit
            if not self._is_behind and self._bytes and self._bytes + size > self._limit:
                self._is_behind = True
                logger.warning("the disk cannot keep up with %s: lines are dropped", self.path)
            if self._is_behind:
                self._overflowed[episode] += 1
                self.dropped += 1
                return
            self._waiting.append(_Waiting(episode, size, render))
            self._bytes += size
            self._changed.notify()

    def lose(self, episode: int) -> None:
        """Count a line that was never put."""
        with self._changed:
            self._overflowed[episode] += 1
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, and close the file."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._is_over():
                batch, overflowed = self._next()
                self._write(batch, overflowed)
                with self._changed:
                    self._bytes -= sum(line.size for line in batch)
        finally:
            if self._file is not None:
                os.close(self._file)

    def _is_over(self) -> bool:
        with self._changed:
            return (
                self._is_closed and not self._waiting and (self.problem is not None or not self._overflowed)
            )

    def _next(self) -> tuple[list[_Waiting], Counter[int]]:
        """The lines that wait, and those that overflowed behind them.

        Both are empty when it is time to try a failing disk again, or to end.
        """
        with self._changed:
            while not self._waiting and not self._is_closed:
                if not self._changed.wait(RETRY_S if self.problem is not None else None):
                    break
            batch = list(self._waiting)
            self._waiting.clear()
            overflowed, self._overflowed = self._overflowed, Counter()
            return batch, overflowed

    def _write(self, batch: list[_Waiting], overflowed: Counter[int]) -> None:
        lines: list[bytes] = []
        rendered: Counter[int] = Counter()
        missing = overflowed.copy()
        for line in batch:
            text = self._rendered(line)
            if text is None:
                missing[line.episode] += 1
            else:
                lines.append(text)
                rendered[line.episode] += 1
        self._count_dropped(missing.total() - overflowed.total())
        if self._refused:
            lines.insert(0, self._describe_loss(self._refused))
        if missing:
            lines.append(self._describe_loss(missing))
        try:
            self._append(lines)
        except OSError as error:
            self._refused.update(missing)
            self._refused.update(rendered)
            self._count_dropped(rendered.total())
            if self.problem is None:
                logger.error("recording to %s has stopped: %s", self.path, error.strerror)
            self.problem = error.strerror or str(error)
        else:
            self._refused.clear()
            if self.problem is not None:
                logger.warning("recording to %s goes on", self.path)
            self.problem = None

    def _count_dropped(self, lines: int) -> None:
        with self._changed:
            self.dropped += lines

    def _rendered(self, line: _Waiting) -> bytes | None:
        try:
            return line.render()
        except Exception:  # one value that cannot be written must not end the recording
            logger.exception("a line of %s could not be written", self.path)
            return None

    def _append(self, lines: list[bytes]) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not self._written:
            lines = [self._first_line, *lines]
        data = memoryview(b"".join(lines))
        size = len(data)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, self._written)
            raise
        self._written += size
