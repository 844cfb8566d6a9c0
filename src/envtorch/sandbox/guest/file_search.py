"""Searching text files for lines that match a regular expression."""

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping

from . import tree
from .tree import printable

_MOST_SEARCHED_BYTES = 8 << 20
_LINE_CHARACTERS = 400


def search(path: str, pattern: str, glob: str) -> Iterator[Mapping[str, object]]:
    """Matching lines of a file, or of those below a folder; binary, very large and unreadable files are left
    out."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise OSError(22, f"the pattern is no regular expression: {error}") from error
    for name in _files(path):
        if glob and not fnmatch.fnmatch(os.path.basename(name), glob):
            continue
        for number, line in _text_lines(name):
            if wanted.search(line) is not None:
                yield {"path": printable(name), "line": number, "text": line[:_LINE_CHARACTERS]}


def open_regular(path: str, flags: int, mode: int = 0o644) -> int:
    """A pipe would never end, a directory gives nothing: only regular files are read and written."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "not a regular file")
    return descriptor


def _files(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
        return
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for entry in tree.walk(top):
        if stat.S_ISREG(entry.status.st_mode):
            yield f"{path.rstrip('/')}/{entry.path}"


def _text_lines(path: str) -> Iterator[tuple[int, str]]:
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            data = file.read(_MOST_SEARCHED_BYTES + 1)
    except OSError:  # not ours to read, or of /proc and not to be read as a text
        return
    if len(data) > _MOST_SEARCHED_BYTES or b"\0" in data[:8192]:
        return
    yield from enumerate(data.decode(errors="replace").splitlines(), 1)
