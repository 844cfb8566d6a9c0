"""What the owner asks of the sandbox's files and commands: each runs in a locked-down child of the init.

A child gets three descriptors, like any program: what comes in, what goes out, and where an error is
reported. It shares no memory with the agent's interpreter, so its answer cannot be forged there.
"""

import json
import os
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import tree

_CHUNK = 1 << 20
FAILED = 97
"""The exit status of an operation that reports an `OSError` on its third descriptor."""


def perform(request: Mapping[str, Any]) -> int:
    """Do what `request` says on descriptors 0, 1 and 2, and return the exit status."""
    operation: Callable[..., None] = _OPERATIONS[request["kind"]]
    try:
        operation(**{name: value for name, value in request.items() if name != "kind"})
    except OSError as error:
        os.write(2, json.dumps({"errno": error.errno or 0, "message": error.strerror or str(error)}).encode())
        return FAILED
    return 0


def _execute(*, command: list[str], environment: dict[str, str]) -> None:
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)  # noqa: S606  there is no shell in between


def _read(*, path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(22, "not a regular file")  # a pipe or a directory would give nothing, or never end
    while data := os.read(descriptor, _CHUNK):
        _write_all(1, data)


def _write(*, path: str) -> None:
    parent = os.path.dirname(path)
    if parent:
        os.makedirs(parent, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    while data := os.read(0, _CHUNK):
        _write_all(descriptor, data)


def _list(*, path: str, limit: int) -> None:
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for count, entry in enumerate(tree.walk(top)):
        if count >= limit:
            break
        mode = entry.status.st_mode
        kind = "link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "file"
        line = {"path": entry.path, "size": entry.status.st_size, "kind": kind}
        _write_all(1, json.dumps(line).encode() + b"\n")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_OPERATIONS: Mapping[str, Callable[..., None]] = {
    "execute": _execute,
    "read": _read,
    "write": _write,
    "list": _list,
}
