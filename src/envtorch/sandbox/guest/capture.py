"""What the agent prints, and what its child processes print, caught in files."""

import errno
import io
import os
import sys
from os import SEEK_END, close, dup2, ftruncate, lseek
from os import open as open_file
from typing import Any

_NUMBERS = (1, 2)
_NAMELESS = os.O_TMPFILE | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Output(io.RawIOBase):
    """One output stream: writes to its capture file up to a limit, and drops the rest without failing."""

    def __init__(self, descriptor: int, capture: "Capture") -> None:
        super().__init__()
        self._descriptor = descriptor
        self._capture = capture
        self.truncated = False

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        size = len(data)
        room = self._capture.limit - os.fstat(self._descriptor).st_size
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
        for number in _NUMBERS:
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
        for number in _NUMBERS:
            if _size(self._files[number]):
                ftruncate(self._files[number], 0)
            if self._is_broken(number):
                self._renew(number)
            if self._streams[number].truncated:
                self._streams[number].truncated = False
        # To set them again to what they are would be to write to them.
        if sys.stdout is not self._texts[1]:
            sys.stdout = self._texts[1]
        if sys.stderr is not self._texts[2]:
            sys.stderr = self._texts[2]

    def _is_broken(self, number: int) -> bool:
        try:
            return self._texts[number].closed
        except ValueError:
            return True  # taken apart

    def _renew(self, number: int) -> None:
        self._streams[number] = Output(number, self)
        buffered = io.BufferedWriter(self._streams[number])
        self._texts[number] = io.TextIOWrapper(
            buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )

    def end(self) -> tuple[str, str, bool]:
        """What was printed, as output and as errors, and whether that is not all."""
        for stream in (sys.stdout, sys.stderr):
            try:  # noqa: SIM105  nothing else is touched this way
                stream.flush()
            except Exception:  # noqa: S110  the agent's own stream, or no stream at all
                pass
        stdout, much = self._take(1)
        stderr, more = self._take(2)
        return stdout, stderr, much or more

    def _take(self, number: int) -> tuple[str, bool]:
        """What is in one of the files, which is empty then, and whether there was more than we keep."""
        size = _size(self._files[number])
        truncated = self._streams[number].truncated or size > self.limit
        if not size:
            return "", truncated
        data = os.pread(self._files[number], min(size, self.limit), 0)
        ftruncate(self._files[number], 0)
        return data.decode("utf-8", "replace"), truncated


def _size(descriptor: int) -> int:
    """Of a file that is only ever appended to. `fstat` would make twenty objects to say it."""
    try:
        return lseek(descriptor, 0, SEEK_END)
    except OSError:
        return 0  # the agent has put something else in its place
