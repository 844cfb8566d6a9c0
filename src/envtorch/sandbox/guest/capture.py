"""What the agent prints, and what its child processes print, caught in files."""

import contextlib
import errno
import io
import os
import sys
from typing import Any

_NAMES = {1: "stdout", 2: "stderr"}
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Output(io.RawIOBase):
    """One output stream: writes to its capture file up to a limit, and drops the rest without failing."""

    def __init__(self, descriptor: int, limit: int) -> None:
        super().__init__()
        self._descriptor = descriptor
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

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._files = {1: -1, 2: -1}
        self._streams: dict[int, Output] = {}
        self.open()

    def open(self) -> None:
        """Make the two files anew, as a fork must: its parent's lie in another tmpfs."""
        for number in self._files:
            flags = os.O_TMPFILE | os.O_RDWR | os.O_APPEND
            descriptor = os.open(self._folder, flags, 0o600)
            os.dup2(descriptor, number)
            if self._files[number] >= 0:
                os.dup2(descriptor, self._files[number], inheritable=False)
                os.close(descriptor)
            else:
                self._files[number] = descriptor

    def begin(self) -> None:
        """Empty files, and fresh stream objects: the agent may have closed or replaced the last ones."""
        for number, name in _NAMES.items():
            if os.fstat(self._files[number]).st_size:
                os.ftruncate(self._files[number], 0)
            self._streams[number] = Output(number, self._limit)
            setattr(sys, name, self._text(number))

    def _text(self, number: int) -> io.TextIOWrapper:
        buffered = io.BufferedWriter(self._streams[number])
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def end(self) -> dict[str, Any]:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        said: dict[str, Any] = {}
        truncated = any(stream.truncated for stream in self._streams.values())
        for number, name in _NAMES.items():
            size = os.fstat(self._files[number]).st_size
            data = os.pread(self._files[number], min(size, self._limit), 0) if size else b""
            truncated = truncated or size > self._limit
            said[name] = data.decode("utf-8", "replace")
            if size:
                os.ftruncate(self._files[number], 0)
        said["truncated"] = truncated
        return said
