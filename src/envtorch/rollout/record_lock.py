"""A lock on a file that a run adds to: two runs do not write to one record."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from envtorch.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

__all__ = ["locked_record"]


@contextmanager
def locked_record(path: Path) -> Iterator[None]:
    """Hold a file, which is made if there is none, for one writer.

    Raises `ConfigurationError` when another writer holds it. Nothing is held on Windows, where a file that is
    open cannot be replaced, and on file systems without locks, such as some that a cluster shares.
    """
    if sys.platform == "win32":
        path.open("ab").close()
        yield
        return
    with path.open("ab") as file:
        if not _lock(file.fileno()) or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise ConfigurationError(
                f"another run adds to {path}",
                next_step="wait until it has ended, or record to another file; a run that was left early "
                "ends when its Rollouts are closed, or its generator (`await groups.aclose()`)",
            )
        try:
            yield
        finally:
            with suppress(OSError):  # explicitly, because processes forked meanwhile have the file open too
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _lock(descriptor: int) -> bool:
    """Whether no other writer has a lock on the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the file system has no locks
    return True
