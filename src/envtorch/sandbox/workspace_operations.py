"""Files and programs on a writable root: each a locked-down child of the session's init, with three pipes."""

import contextlib
import errno
import os
import secrets
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Annotated, Any

import msgspec

from envtorch.errors import OutOfResources, SessionLost, TimedOut

from .head_and_tail import HeadAndTail
from .results import Completed, Outcome
from .shell_results import FoundFile, FoundLine, Listing
from .workspace_channel import WorkspaceChannel

__all__ = ["decode_lines", "decode_listing", "open_pipes", "operate", "raise_reported", "reported_error"]

_FAILED = 97
_CHUNK = 1 << 16
_END_S = 30.0
"""As in `operating`: how long a killed process may take to end on a busy machine."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def operate(
    channel: WorkspaceChannel, what: Mapping[str, Any], *, stdin: bytes, limit: int, timeout_s: float
) -> Completed:
    """Have the init's child do something; read what it writes until it ends or the time is over. What it
    leaves running may keep its streams open, and holds nothing up. Raises `OutOfResources` when no child can
    be started, as in a session that has all the processes it may have."""
    job = f"operation-{secrets.token_hex(4)}"
    began = time.monotonic()
    ours, theirs = open_pipes()
    channel.expect(job)
    streams = {ours[1]: HeadAndTail(limit), ours[2]: HeadAndTail(limit)}
    try:
        with open(ours[0], "wb", buffering=0) as inward:
            try:
                channel.tell({"op": "operate", "job": job, "what": what}, theirs)
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            in_time = _transfer(inward, streams, stdin, began + timeout_s, _End(channel, job))
        if not in_time:
            channel.tell({"op": "signal", "job": job, "number": int(signal.SIGKILL)})
        status = channel.await_exit(job, time.monotonic() + _END_S)
    finally:
        for descriptor in streams:
            os.close(descriptor)
        channel.forget(job)
    if status is None:
        raise SessionLost("an operation in the session could not be ended")
    outcome = Outcome.OK if status == 0 else Outcome.ERROR
    return Completed(
        outcome=outcome if in_time else Outcome.TIMED_OUT,
        exit_status=status,
        stdout=bytes(streams[ours[1]]),
        stderr=bytes(streams[ours[2]]),
        duration_s=time.monotonic() - began,
        truncated=any(stream.left_out for stream in streams.values()),
    )


def open_pipes() -> tuple[list[int], list[int]]:
    """Three pipes, or none: our ends, which do not block, and the child's."""
    opened: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            opened.append(os.pipe2(os.O_CLOEXEC))
    except OSError:
        for pipe in opened:
            for descriptor in pipe:
                os.close(descriptor)
        raise
    inward, outward, errors = opened
    ours = [inward[1], outward[0], errors[0]]
    for descriptor in ours:
        os.set_blocking(descriptor, False)
    return ours, [inward[0], outward[1], errors[1]]


@dataclass(frozen=True, slots=True)
class _End:
    """Whether a job has ended, as its init tells on the control socket."""

    channel: WorkspaceChannel
    job: str

    def fileno(self) -> int:
        return self.channel.fileno()

    def has_come(self) -> bool:
        return self.channel.exit_status(self.job) is not None


def _transfer(
    inward: FileIO, streams: Mapping[int, HeadAndTail], stdin: bytes, deadline: float, end: _End
) -> bool:
    """Write what goes in, read what comes out, until both streams or the job end. Closes `inward` as soon as
    everything is written."""
    waiting = select.poll()
    left, open_streams = memoryview(stdin), set(streams)
    for descriptor in (*open_streams, end.fileno()):
        waiting.register(descriptor, select.POLLIN)
    if left:
        waiting.register(inward, select.POLLOUT)
    else:
        inward.close()
    while open_streams:
        ready = waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready and time.monotonic() >= deadline:
            break
        for descriptor, event in ready:
            if descriptor == end.fileno():
                if end.has_come():
                    _read_rest(streams, open_streams)
            elif not inward.closed and descriptor == inward.fileno():
                try:
                    written = os.write(descriptor, left[:_CHUNK]) if not event & select.POLLERR else len(left)
                except (BrokenPipeError, BlockingIOError):
                    written = len(left)
                left = left[written:]
                if not left:
                    waiting.unregister(inward)
                    inward.close()
            elif data := _read(descriptor):
                streams[descriptor].add(data)
            else:
                waiting.unregister(descriptor)
                open_streams.discard(descriptor)
    return not open_streams


def _read_rest(streams: Mapping[int, HeadAndTail], open_streams: set[int]) -> None:
    """Read what a job that has ended left in its pipes: at most what they hold, for others may write on."""
    for descriptor in open_streams:
        room = _CHUNK
        while room > 0 and (data := _read(descriptor)):
            streams[descriptor].add(data)
            room -= len(data)
    open_streams.clear()


def _read(descriptor: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, _CHUNK)
    return b""


class _Report(msgspec.Struct, frozen=True):
    """What a child writes to its third descriptor when it fails."""

    errno: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    message: str


def reported_error(done: Completed) -> OSError | None:
    """The error that a child of ours reported; None for anything else, as a program may write and exit with
    what it likes."""
    if done.exit_status != _FAILED:
        return None
    with contextlib.suppress(msgspec.DecodeError, RecursionError, ValueError):
        said = msgspec.json.decode(done.stderr, type=_Report)
        return OSError(said.errno, said.message)
    return None


def raise_reported(done: Completed, path: str) -> None:
    """Raise what a file operation reported; nothing when it went well."""
    if done.outcome is Outcome.TIMED_OUT:
        raise TimedOut(f"{path} could not be read or written in time")
    if done.exit_status == 0:
        return
    if done.exit_status < 0:
        why = "the session's memory was used up, or one of its processes ended it"
        raise OSError(errno.EINTR, f"the operation was ended by signal {-done.exit_status}: {why}", path)
    error = reported_error(done)
    if error is None:
        raise SessionLost(f"the operation on {path} was ended with status {done.exit_status}")
    if error.errno in _FULL:
        raise OutOfResources(f"{path}: {error.strerror}")
    raise OSError(error.errno, error.strerror, path)


class _Line(msgspec.Struct, frozen=True):
    path: str = ""
    size: int = 0
    kind: str = ""
    line: int = 0
    text: str = ""
    more: bool = False


def decode_listing(data: bytes) -> Listing:
    """Entries that a child wrote. Raises `OSError` for what no child of ours would write."""
    lines = _lines(data)
    entries = tuple(FoundFile(line.path, line.size, line.kind) for line in lines if not line.more)
    return Listing(entries, complete=not any(line.more for line in lines))


def decode_lines(data: bytes) -> tuple[list[FoundLine], bool]:
    """Lines that a search found, and whether those are all."""
    lines = _lines(data)
    found = [FoundLine(line.path, line.line, line.text) for line in lines if not line.more]
    return found, not any(line.more for line in lines)


def _lines(data: bytes) -> list[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    try:
        return [decoder.decode(line) for line in data.splitlines()]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise OSError(f"the answer of a file operation could not be read: {error}") from error
