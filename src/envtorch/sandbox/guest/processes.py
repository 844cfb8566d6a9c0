"""Finding the processes of a sandbox."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

_MARK = b"Max msgqueue size"
_HARMLESS_SIGNALS = sum(1 << number - 1 for number in (signal.SIGINT, 32, 33))
"""As bits: the one for which the interpreter has a handler of ours, and two of the C library's own."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What /proc tells about a process."""

    lives: bool
    """It has not ended, though its parent may not know yet."""
    namespaces: int
    """In how many pid namespaces it is seen, from ours downwards."""


def status(process: int) -> ProcessStatus | None:
    """None when it has gone."""
    try:
        with open(f"/proc/{process}/status", "rb", buffering=0) as file:
            text = file.readall()
    except OSError:
        return None
    state = text.partition(b"\nState:")[2].split(maxsplit=1)[:1]
    ids = text.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return ProcessStatus(state not in ([b"Z"], [b"X"]), len(ids))


def waits(process: int) -> bool:
    """Whether a process sleeps, has one thread, and has a handler for no signal but SIGINT: it does nothing
    until what it waits for comes."""
    try:
        with open(f"/proc/{process}/status", "rb", buffering=0) as file:
            text = file.readall()
    except OSError:
        return True
    state, threads, caught = (
        text.partition(b"\n%s:" % name)[2].split(maxsplit=1)[0] for name in (b"State", b"Threads", b"SigCgt")
    )
    return state == b"S" and threads == b"1" and not int(caught, 16) & ~_HARMLESS_SIGNALS


def stands_still(process: int) -> bool:
    """Whether no thread of a process does anything until another process has it go on: it is stopped, or has
    ended, or waits for a process that it has just started and shares its memory with (vfork)."""
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return True
    for thread in threads:
        state = _state(f"/proc/{process}/task/{thread}/stat")
        if state not in (b"T", b"t", b"Z", b"X", None) and not (state == b"D" and children_of(process)):
            return False
    return True


def _state(path: str) -> bytes | None:
    """The state of a thread, as a letter; None when it has gone."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.readall().rpartition(b")")[2].split(maxsplit=1)[0]
    return None


def mark(process: int) -> int | None:
    """The mark of the sandbox that started a process: a limit that nothing here uses, and no code of the
    agent's may set. None when it has gone, or has no such limit."""
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open(f"/proc/{process}/limits", "rb", buffering=0) as file,
    ):
        return int(file.readall().partition(_MARK)[2].split()[1])
    return None


def descendants(process: int) -> Iterator[int]:
    """Every process below `process`, each told as soon as it is found: it may have gone a moment later.

    Orphans are among them where `process` is their reaper.
    """
    queue = [process]
    while queue:
        for child in children_of(queue.pop()):
            yield child
            queue.append(child)


def children_of(process: int) -> list[int]:
    """The processes that `process` is the parent of, or has become the parent of."""
    found: list[int] = []
    if not os.path.exists("/proc/thread-self/children"):  # a kernel without CONFIG_PROC_CHILDREN
        for name in filter(str.isdigit, os.listdir("/proc")):
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", "rb", buffering=0) as file,
            ):
                if int(file.readall().rpartition(b")")[2].split()[1]) == process:
                    found.append(int(name))
        return found
    with contextlib.suppress(OSError):  # it has gone meanwhile
        for task in os.listdir(f"/proc/{process}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{process}/task/{task}/children", "rb", buffering=0) as file,
            ):
                found += map(int, file.readall().split())
    return found
