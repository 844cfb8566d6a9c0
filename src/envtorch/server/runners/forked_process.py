"""Ends processes that an environment's code forked and did not end itself."""

import os
from contextlib import suppress
from typing import Any

from envtorch.protocol.calls import Call
from envtorch.protocol.flow import Flow
from envtorch.protocol.host import CallResult, finish

__all__ = ["end_if_forked", "finish_here"]

EXIT_STATUS = 1
"""As Python's own for an exception that nobody caught."""


def end_if_forked(process: int) -> None:
    """Return in `process`. In any other process, end it: no cleanup, and nothing that is buffered is written.

    `process` is what `os.getpid` gave before an author's code was called. Where that code forks, and the
    child returns or raises instead of ending with `os._exit`, the child has a copy of the whole stack, with
    every socket: it would answer its parent's requests and take new ones.

    The line on stderr is written without the `logging` module: its handlers may need threads and locks that
    the child does not have.
    """
    if os.getpid() == process:
        return
    note = (
        f"envtorch: process {os.getpid()} was forked in an environment's code, which returned or raised in "
        "it, so it was ended here: end a forked process with os._exit\n"
    )
    with suppress(OSError):
        os.write(2, note.encode())
    os._exit(EXIT_STATUS)


async def finish_here(call: Call, flow: Flow[Any], wanted: Any) -> CallResult:
    """`finish`, which a process that the author's code forked does not return from."""
    process = os.getpid()
    answered = await finish(call, flow, wanted)
    end_if_forked(process)
    return answered
