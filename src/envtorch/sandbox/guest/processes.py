"""Looking around among the processes of a sandbox."""

import contextlib
import os


def is_ours(process: int) -> bool:
    """Whether a process lives and is ours to kill: one of a fork has an id in a deeper namespace as well."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            status = file.read()
    except OSError:
        return False  # it has gone meanwhile
    lines = [line.split() for line in status.splitlines()]
    fields = {words[0]: words[1:] for words in lines if words}
    return fields.get(b"State:", [b"Z"])[0] not in (b"Z", b"X") and len(fields.get(b"NSpid:", ())) == 1


def descendants(process: int) -> list[int]:
    """Every process below `process`; orphans among them too, for we are their reaper."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", "rb") as file,
            ):
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    parents.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [process]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found
