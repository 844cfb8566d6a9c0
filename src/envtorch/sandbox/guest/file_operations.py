"""What an owner asks of a session's files and programs: each runs in a locked-down child of the init.

A child gets three descriptors, like any program: what comes in, what goes out, and where an error is
reported. The agent's processes can open neither its memory nor its descriptors, for it is not dumpable: its
answer cannot be forged there. With `execute` it becomes a program of the agent's, and all of that ends. A
`Sandbox` and a `Workspace` have the same operations.
"""

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import file_search, tree, users
from .tree import kind_of, printable

_CHUNK = 1 << 20
_AROUND = ("kind", "user", "directory")
"""What a request says besides the arguments of its operation: whom it is done by, and where."""
FAILED = 97
"""The exit status of an operation that reports an `OSError` on its third descriptor."""


def perform(request: Mapping[str, Any]) -> int:
    """Do what `request` says on descriptors 0, 1 and 2, and return the exit status."""
    operation: Callable[..., None] = _OPERATIONS[request["kind"]]
    try:
        arguments = {name: value for name, value in request.items() if name not in _AROUND}
        if "directory" in request:
            os.chdir(request["directory"])
        if user := request.get("user"):
            account = users.find(user)
            users.become(account)
            if "environment" in arguments:
                arguments["environment"] |= {"HOME": account.home, "USER": account.name}
        operation(**arguments)
    except (OSError, ValueError) as failure:  # ValueError: a path with a NUL in it
        error = failure if isinstance(failure, OSError) else OSError(errno.EINVAL, str(failure))
        os.write(2, json.dumps({"errno": error.errno or 0, "message": error.strerror or str(error)}).encode())
        return FAILED
    return 0


def _execute(*, command: list[str], environment: dict[str, str]) -> None:
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)  # noqa: S606  there is no shell in between


def _read(*, path: str, limit: int | None = None) -> None:
    descriptor = file_search.open_regular(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    if limit is not None and size > limit:
        raise OSError(27, f"the file has {size} bytes, and {limit} can be read")
    while data := os.read(descriptor, _CHUNK):
        _write_all(1, data)


def _write(*, path: str) -> None:
    if parent := os.path.dirname(path):
        os.makedirs(parent, exist_ok=True)
    descriptor = file_search.open_regular(path, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(descriptor, 0)
    while data := os.read(0, _CHUNK):
        _write_all(descriptor, data)


def _list(*, path: str, limit: int, depth: int | None = None, tell_more: bool = False) -> None:
    """Entries as lines of JSON; with `tell_more` a last line says that there are more than `limit`."""
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for count, entry in enumerate(tree.walk(top, depth=depth)):
        if count >= limit:
            if tell_more:
                _tell({"more": True})
            return
        kind = kind_of(entry.status)
        _tell({"path": printable(entry.path), "size": entry.status.st_size, "kind": kind})


def _search(*, path: str, pattern: str, glob: str, limit: int) -> None:
    """Lines that match a regular expression, as lines of JSON."""
    for count, found in enumerate(file_search.search(path, pattern, glob)):
        if count >= limit:
            _tell({"more": True})
            return
        _tell(found)


def _tell(line: Mapping[str, Any]) -> None:
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
    "search": _search,
}
