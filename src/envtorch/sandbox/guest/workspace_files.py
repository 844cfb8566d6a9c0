"""File operations and programs on a writable root: each runs in a locked-down child of the session's init.

A child has three descriptors, like any program: what comes in, what goes out, and where an error is reported.
"""

import fnmatch
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_CHUNK = 1 << 20
FAILED = 97
"""The exit status of an operation that reports an `OSError` on its third descriptor."""
_MOST_SEARCHED_BYTES = 8 << 20
_LINE_CHARACTERS = 400


def perform(request: Mapping[str, Any]) -> int:
    """Do what `request` says on descriptors 0, 1 and 2, and return the exit status."""
    operation: Callable[..., None] = _OPERATIONS[request["kind"]]
    try:
        os.chdir(request.get("directory", "/"))
        operation(**{name: value for name, value in request.items() if name not in ("kind", "directory")})
    except OSError as error:
        said = {"errno": error.errno or 0, "message": error.strerror or str(error)}
        os.write(2, json.dumps(said).encode())
        return FAILED
    return 0


def _execute(*, command: list[str], environment: dict[str, str]) -> None:
    os.execvpe(command[0], command, environment)  # noqa: S606  there is no shell in between


def _open_regular(path: str, flags: int, mode: int = 0o644) -> int:
    """A pipe would never end, a directory gives nothing: only regular files are read and written."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "not a regular file")
    return descriptor


def _read(*, path: str, limit: int) -> None:
    descriptor = _open_regular(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    if size > limit:
        raise OSError(27, f"the file has {size} bytes, and {limit} can be read")
    while data := os.read(descriptor, _CHUNK):
        _write_all(1, data)


def _write(*, path: str) -> None:
    if parent := os.path.dirname(path):
        os.makedirs(parent, exist_ok=True)
    descriptor = _open_regular(path, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(descriptor, 0)
    while data := os.read(0, _CHUNK):
        _write_all(descriptor, data)


def _list(*, path: str, depth: int, limit: int) -> None:
    for count, (entry, name) in enumerate(_entries(path, "", depth)):
        if count >= limit:
            _write_all(1, b'{"more":true}\n')
            return
        found = entry.stat(follow_symlinks=False)
        mode = found.st_mode
        kind = "link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "file"
        line = {"path": _printable(name), "size": found.st_size, "kind": kind}
        _write_all(1, json.dumps(line).encode() + b"\n")


def _entries(path: str, below: str, depth: int) -> Iterator[tuple["os.DirEntry[str]", str]]:
    with os.scandir(path) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{below}{entry.name}"
        yield entry, name
        if depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, f"{name}/", depth - 1)


def _search(*, path: str, pattern: str, glob: str, limit: int) -> None:
    """Lines that match a regular expression, as JSON; binary and very large files are left out."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise OSError(22, f"the pattern is no regular expression: {error}") from error
    count = 0
    for name in _files(path):
        if glob and not fnmatch.fnmatch(os.path.basename(name), glob):
            continue
        for number, line in _text_lines(name):
            if wanted.search(line) is None:
                continue
            if count >= limit:
                _write_all(1, b'{"more":true}\n')
                return
            count += 1
            told = {"path": _printable(name), "line": number, "text": line[:_LINE_CHARACTERS]}
            _write_all(1, json.dumps(told).encode() + b"\n")


def _files(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
        return
    for entry, name in _entries(path, "", 64):
        if entry.is_file(follow_symlinks=False):
            yield f"{path.rstrip('/')}/{name}"


def _text_lines(path: str) -> Iterator[tuple[int, str]]:
    try:
        descriptor = _open_regular(path, os.O_RDONLY)
    except OSError:
        return
    with open(descriptor, "rb") as file:
        data = file.read(_MOST_SEARCHED_BYTES + 1)
    if len(data) > _MOST_SEARCHED_BYTES or b"\0" in data[:8192]:
        return
    yield from enumerate(data.decode(errors="replace").splitlines(), 1)


def _printable(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_OPERATIONS: Mapping[str, Callable[..., None]] = {
    "execute": _execute,
    "read": _read,
    "write": _write,
    "list": _list,
    "search": _search,
}
