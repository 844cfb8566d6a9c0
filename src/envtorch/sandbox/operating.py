"""Files and commands as flows: each is a locked-down child of the init, with three pipes to us.

The agent's interpreter takes no part, so these work while its code is broken, and after it has died.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from envtorch.errors import OutOfResources, SessionLost, TimedOut

from .core import Core, new_identifier
from .driver import Block, Flow, Wait
from .flows import close, close_all
from .fork_flows import copy_moving_files
from .results import Completed, FileInfo, Outcome
from .shell_results import FoundLine
from .workspace_operations import decode_lines, open_pipes, reported_error

__all__ = ["LIST_LIMIT", "execute", "list_files", "read_file", "search", "write_file"]

_CHUNK = 1 << 16
"""Allocated before each read: beyond 128 kB the allocator would map and unmap memory every time."""
LIST_LIMIT = 100_000
"""The most entries that a list of files has."""
_ENTRY_BYTES = 4096
_LIST_BYTES = 64 * 1024 * 1024
_DISK_FULL = (27, 28, 122)
_END_TIMEOUT_S = 30.0
"""How long a killed process may take to end: on a busy machine, its init may have to wait for its turn."""


def execute(
    core: Core,
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Flow[Completed]:
    """Run a program in the sandbox, with the sandbox's limits."""
    if not command or not all(isinstance(word, str) and "\0" not in word for word in command):
        raise ValueError("a command is a sequence of at least one string, none with a NUL in it")
    what = {"kind": "execute", "command": list(command), "environment": dict(environment or {})}
    limit = core.policy.timeout_s if timeout_s is None else timeout_s
    done = yield from _Operation(core, core.policy.output_bytes).perform(what, stdin, limit)
    if error := reported_error(done):
        return Completed(
            outcome=Outcome.ERROR, exit_status=127, stdout=b"", stderr=f"{command[0]}: {error}\n".encode()
        )
    return done


def read_file(core: Core, path: str, *, limit: int) -> Flow[bytes]:
    """The bytes of a file. Raises `OSError`, or `OverflowError` when there are more than `limit`."""
    done = yield from _look(core, {"kind": "read", "path": path}, limit)
    _raise_error(done, path)
    if done.truncated:
        raise OverflowError(f"{path} is larger than {limit} bytes")
    return done.stdout


def write_file(core: Core, path: str, data: bytes) -> Flow[None]:
    """Make or replace a file, and the folders above it."""
    done = yield from _Operation(core, 65536).perform(
        {"kind": "write", "path": path}, data, core.policy.timeout_s
    )
    _raise_error(done, path)


def list_files(
    core: Core, path: str, *, depth: int | None = None, limit: int = LIST_LIMIT
) -> Flow[list[FileInfo]]:
    """What is below a folder, in order: `depth` levels, or all of them, and at most `limit` entries. Raises
    `OSError`, as for names that together are too long."""
    what = {"kind": "list", "path": path, "depth": depth, "limit": limit}
    done = yield from _look(core, what, min(_LIST_BYTES, limit * _ENTRY_BYTES))
    _raise_error(done, path)
    if done.truncated:
        raise OSError(errno.E2BIG, "its names are too long for one list: list the folders in it", path)
    found: list[FileInfo] = yield Block(lambda: _decode_files(done.stdout, path))
    return found


def search(
    core: Core, pattern: str, path: str, *, glob: str, limit: int
) -> Flow[tuple[list[FoundLine], bool]]:
    """Lines below a folder that match a regular expression, and whether those are all."""
    what = {"kind": "search", "path": path, "pattern": pattern, "glob": glob, "limit": limit}
    done = yield from _look(core, what, _LIST_BYTES)
    _raise_error(done, path)
    found: tuple[list[FoundLine], bool] = yield Block(lambda: decode_lines(done.stdout))
    return found


def _look(core: Core, what: Mapping[str, Any], limit: int) -> Flow[Completed]:
    """Look at files; at a copy of them, when the agent's processes have used up what there may be."""
    try:
        return (yield from _Operation(core, limit).perform(what, b"", core.policy.timeout_s))
    except OutOfResources:
        copy = yield from copy_moving_files(core)
    try:
        return (yield from _Operation(copy, limit).perform(what, b"", core.policy.timeout_s))
    finally:
        yield from close(copy)


def _decode_files(data: bytes, path: str) -> list[FileInfo]:
    decoder = msgspec.json.Decoder(FileInfo)
    with contextlib.suppress(msgspec.DecodeError, RecursionError, ValueError):
        return [decoder.decode(line) for line in data.splitlines()]
    raise OSError(f"the list of {path} could not be read")


def _raise_error(done: Completed, path: str) -> None:
    if done.outcome is Outcome.TIMED_OUT:
        raise TimedOut(f"{path} could not be read or written in time")
    if done.exit_status == 0:
        return
    error = reported_error(done)
    if error is None:
        raise SessionLost(f"the operation on {path} was ended with status {done.exit_status}")
    if error.errno in _DISK_FULL:
        raise OutOfResources(f"{path}: {error.strerror}")
    raise OSError(error.errno, error.strerror, path)


class _Operation:
    """One child of the init, from the pipes that are made for it to the last byte it wrote."""

    def __init__(self, core: Core, limit: int) -> None:
        self._core = core
        self._limit = limit
        self._job = new_identifier()
        self._collected = {"stdout": bytearray(), "stderr": bytearray()}
        self._truncated = False

    def perform(self, what: Mapping[str, Any], stdin: bytes, timeout_s: float) -> Flow[Completed]:
        """Raises `OutOfResources` when no process could be started."""
        self._core.require_open()
        began = time.monotonic()
        near, far = open_pipes()
        handle = self._core.handle
        handle.jobs.add(self._job)
        self._core.begin_work()
        try:
            try:
                handle.tell({"op": "operate", "job": self._job, "what": what}, far)
            finally:
                close_all(far)
            timed_out = yield from self._attend(near, memoryview(stdin), began + timeout_s)
        except BaseException:
            # Whoever waited has been cancelled: nobody would end the program when its time is over.
            handle.signal(signal.SIGKILL, self._job)
            raise
        finally:
            handle.jobs.discard(self._job)
            self._core.end_work()
            close_all(near)
        return self._completed(timed_out, time.monotonic() - began)

    def _attend(self, near: list[int], stdin: memoryview, deadline: float) -> Flow[bool]:
        """Feed and drain the pipes until the child has ended. True when it had to be killed for its time."""
        near_in, near_out, near_err = near
        readers = {near_out: "stdout", near_err: "stderr"}
        timed_out = False
        while True:
            if stdin:
                stdin = self._feed(near_in, stdin)
            if not stdin and near_in in near:
                near.remove(near_in)
                os.close(near_in)
            events = self._core.handle.events()
            gone = events is None or (not events and self._core.handle.is_gone())
            for descriptor, name in list(readers.items()):
                if not self._drain(descriptor, name):
                    del readers[descriptor]
            if self._job in self._core.handle.exits:
                return timed_out
            if gone:
                raise SessionLost("the sandbox has ended")
            if time.monotonic() >= deadline:
                if timed_out:
                    raise SessionLost("a command could not be killed")
                timed_out, deadline = True, time.monotonic() + _END_TIMEOUT_S
                self._core.handle.signal(signal.SIGKILL, self._job)
            watched = [self._core.handle.control.fileno(), *self._core.handle.watched()]
            yield Wait([*watched, *readers], [near_in] if stdin else [], deadline)

    def _feed(self, descriptor: int, data: memoryview) -> memoryview:
        """Write what the pipe takes. What is left to write: nothing when nobody reads it."""
        try:
            while data:
                data = data[os.write(descriptor, data[:_CHUNK]) :]
        except BlockingIOError:
            return data
        except OSError:
            return data[:0]
        return data

    def _drain(self, descriptor: int, name: str) -> bool:
        """Read what there is, keep what fits. False at the end of the stream."""
        kept = self._collected[name]
        for _ in range(4):  # then everybody else has a turn: a flood may never pause
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            room = self._limit - len(kept)
            self._truncated = self._truncated or len(data) > room
            kept += data[: max(0, room)]
        return True

    def _completed(self, timed_out: bool, duration_s: float) -> Completed:
        ended = self._core.handle.exits.pop(self._job)
        if ended.message:
            raise OutOfResources(ended.message)
        outcome = Outcome.OK if ended.status == 0 else Outcome.ERROR
        if timed_out:
            outcome = Outcome.TIMED_OUT
        elif outcome is Outcome.OK and self._truncated:
            outcome = Outcome.OUTPUT_TRUNCATED
        return Completed(
            outcome=outcome,
            exit_status=ended.status,
            stdout=bytes(self._collected["stdout"]),
            stderr=bytes(self._collected["stderr"]),
            duration_s=duration_s,
            cpu_s=ended.cpu_s,
            truncated=self._truncated,
        )
