"""What the processes of a sandbox use together, as /proc tells it."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .guest.processes import descendants, mark

__all__ = ["Usage", "measure", "netlink_bytes"]

_KILOBYTE = 1024
_WAITING_FIELD = 4
_MOST_READ = 128 * _KILOBYTE
"""Of a list of netlink sockets, which has about 90 bytes for each."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of one sandbox use, its init left out."""

    processes: int
    threads: int
    """Of all processes together; a process has one at least."""
    memory_bytes: int
    """Anonymous and shared memory that is in use."""
    descriptors: int
    """Open descriptors; 0 where the kernel (before 6.2) does not tell."""


def measure(init: int, interpreters: Iterable[int], *, own_mark: int | None, enough_bytes: int) -> Usage:
    """Add up the processes below `init` and `interpreters`, those with another mark than `own_mark` left out.

    Memory that processes share, as after a fork, is counted for each of them as long as that does not add up
    to more than `enough_bytes`. Only then is it looked at page by page, which takes the kernel longer.
    """
    found = [process for process in _members(init, interpreters) if own_mark in (None, mark(process))]
    threads = memory = descriptors = 0
    for process in found:
        fields = _fields(f"/proc/{process}/status")
        threads += fields.get("Threads", 0)
        memory += _KILOBYTE * (fields.get("RssAnon", 0) + fields.get("RssShmem", 0))
        with contextlib.suppress(OSError):
            descriptors += os.stat(f"/proc/{process}/fd").st_size
    if memory > enough_bytes:
        memory = sum(map(_exact_memory, found))
    return Usage(len(found), threads, memory, descriptors)


def netlink_bytes(process: int) -> int:
    """What waits to be read in the netlink sockets of a process's network: control groups do not count it.

    The time to read their list grows faster than their number. With about 1,400 of them, hundreds of times
    what programs need, they count as more than any limit.
    """
    with contextlib.suppress(OSError), open(f"/proc/{process}/net/netlink", "rb") as file:
        text = file.read(_MOST_READ)
        if len(text) == _MOST_READ:
            return sys.maxsize
        lines = [line.split() for line in text.splitlines()[1:]]
        return sum(int(words[_WAITING_FIELD]) for words in lines)
    return 0


def _members(init: int, interpreters: Iterable[int]) -> Iterator[int]:
    """The interpreter of a fork is no child of the fork's init, but of its parent's."""
    seen: set[int] = set()
    for process in interpreters:
        seen |= {process, *descendants(process)}
    seen |= set(descendants(init))
    yield from seen


def _exact_memory(process: int) -> int:
    """The share that a process has in its anonymous and shared memory, in bytes. Where this process may not
    look, what it has altogether."""
    shares = _fields(f"/proc/{process}/smaps_rollup")
    if "Pss_Anon" in shares:
        return _KILOBYTE * (shares["Pss_Anon"] + shares.get("Pss_Shmem", 0))
    whole = _fields(f"/proc/{process}/status")
    return _KILOBYTE * (whole.get("RssAnon", 0) + whole.get("RssShmem", 0))


def _fields(path: str) -> dict[str, int]:
    """The lines of the form `name: number ...`; none when the process has gone, or may not be looked at."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        for line in file.readall().splitlines():
            name, _, rest = line.partition(b":")
            words = rest.split()
            if words and words[0].isdigit():
                found[name.decode()] = int(words[0])
    return found
