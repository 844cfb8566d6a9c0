"""Writes lines to a file, on a thread of its own: whoever has something to say never waits for the disk."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

__all__ = ["LineWriter"]

logger = logging.getLogger(__name__)

BACKLOG_BYTES = 256 * 1024 * 1024
"""How much may wait to be written before lines are lost."""

Render = Callable[[], bytes]


class LineWriter:
    """Appends lines to one file, in order, as soon as it can.

    Every batch goes to the operating system in one write, with nothing kept back: a process that is killed
    leaves whole lines, and at most the last one torn.
    """

    def __init__(self, path: Path, *, backlog_bytes: int = BACKLOG_BYTES) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._limit = backlog_bytes
        self._waiting: deque[tuple[int, Render]] = deque()
        self._bytes = 0
        self._is_closed = False
        self._failed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"recording {path.name}", daemon=True)
        self._thread.start()

    def put(self, size: int, render: Render) -> bool:
        """Have what `render` gives written; it is called on the writer's thread. False if there is no room.

        `size` is about how much memory waits with it.
        """
        with self._changed:
            if size and self._bytes and self._bytes + size > self._limit:
                return False
            self._waiting.append((size, render))
            self._bytes += size
            self._changed.notify()
        return True

    @property
    def has_caught_up(self) -> bool:
        """Whether there is room again, and not just for one more line."""
        return self._bytes * 2 < self._limit

    def close(self) -> None:
        """Write what waits, and close the file."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        try:
            while batch := self._next():
                if not self._failed:
                    self._write(batch)
                with self._changed:
                    self._bytes -= sum(size for size, _ in batch)
        finally:
            os.close(self._file)

    def _next(self) -> list[tuple[int, Render]]:
        """What waits; nothing when the end has come."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            batch = list(self._waiting)
            self._waiting.clear()
            return batch

    def _write(self, batch: list[tuple[int, Render]]) -> None:
        lines = []
        for _, render in batch:
            try:
                lines.append(render())
            except Exception:  # one value that cannot be written must not end the recording
                logger.exception("a line of %s could not be written", self.path)
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._failed = True
            logger.error("recording to %s has stopped: %s", self.path, error.strerror)
