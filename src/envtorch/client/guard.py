"""Who may use a client: the process that made it, and one thread at a time."""

import os
import threading

from envtorch.errors import ClientBusy, WrongProcess

__all__ = ["ProcessGuard", "UseGuard"]


class ProcessGuard:
    """Notes the process it was made in."""

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_at_home(self) -> bool:
        """This is the process that it was made in."""
        return os.getpid() == self._pid

    def require(self) -> None:
        """Raise `WrongProcess` in any other process."""
        if os.getpid() != self._pid:
            raise WrongProcess.of(self._what, self._pid)


class UseGuard(ProcessGuard):
    """A `with` block that one thread of one process may be in. Any other is refused, and never waits.

    A lock would be taken twice by a signal handler that closes a client in the middle of a call, and hang.
    """

    __slots__ = ("_lock",)

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.require()
        if not self._lock.acquire(blocking=False):
            raise ClientBusy(f"another thread is in a call on this {self._what}: use one per thread")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
