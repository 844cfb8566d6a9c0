"""What the agent prints, and what its child processes print, caught in files."""

import errno
import io
import os
import sys
from os import SEEK_END, close, dup2, ftruncate, lseek
from os import open as open_file
from typing import Any

_NAMES = {1: "stdout", 2: "stderr"}
_NAMELESS = os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Output(io.RawIOBase):
    """One output stream: writes to its capture file up to a limit, and drops the rest without failing."""

    def __init__(self, descriptor: int, limit: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.renew(limit)

    def renew(self, limit: int) -> None:
        self._limit = limit
        self.truncated = False

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        size = len(data)
        room = self._limit - os.fstat(self._descriptor).st_size
        if room < size:
            self.truncated = True
        if room > 0:
            try:
                os.write(self._descriptor, data[:room])
            except OSError as error:
                if error.errno not in DISK_ERRORS:
                    raise
                self.truncated = True
        return size


class Capture:
    """What the agent and its child processes print, in two unlinked files behind descriptors 1 and 2."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._files = {1: -1, 2: -1}
        self._streams: dict[int, Output] = {}
        self._texts: dict[int, io.TextIOWrapper] = {}
        for number in _NAMES:
            self._renew(number)

    def open(self, folder: str) -> None:
        """Make the two files, anew in a fork: those of its parent lie in another tmpfs."""
        for number in self._files:
            descriptor = open_file(folder, _NAMELESS, 0o600)
            dup2(descriptor, number)
            if self._files[number] >= 0:
                dup2(descriptor, self._files[number], inheritable=False)
                close(descriptor)
            else:
                self._files[number] = descriptor

    def begin(self) -> None:
        """Empty files, and whole stream objects: the agent may have closed or replaced those it had."""
        for number, name in _NAMES.items():
            if _size(self._files[number]):
                ftruncate(self._files[number], 0)
            if self._is_broken(number):
                self._renew(number)
            self._streams[number].renew(self.limit)
            setattr(sys, name, self._texts[number])

    def _is_broken(self, number: int) -> bool:
        try:
            return self._texts[number].closed
        except ValueError:
            return True  # taken apart

    def _renew(self, number: int) -> None:
        self._streams[number] = Output(number, self.limit)
        buffered = io.BufferedWriter(self._streams[number])
        self._texts[number] = io.TextIOWrapper(
            buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )

    def end(self) -> dict[str, Any]:
        for stream in (sys.stdout, sys.stderr):
            try:  # noqa: SIM105  nothing else is touched this way
                stream.flush()
            except Exception:  # noqa: S110  the agent's own stream, or no stream at all
                pass
        said: dict[str, Any] = {}
        truncated = False
        for number, name in _NAMES.items():
            size = _size(self._files[number])
            truncated = truncated or self._streams[number].truncated or size > self.limit
            said[name] = ""
            if size:
                said[name] = os.pread(self._files[number], min(size, self.limit), 0).decode(
                    "utf-8", "replace"
                )
                ftruncate(self._files[number], 0)
        said["truncated"] = truncated
        return said


def _size(descriptor: int) -> int:
    """Of a file that is only ever appended to. `fstat` would make twenty objects to say it."""
    try:
        return lseek(descriptor, 0, SEEK_END)
    except OSError:
        return 0  # the agent has put something else in its place
