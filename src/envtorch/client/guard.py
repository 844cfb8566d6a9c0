"""Who may use a client: the process that made it, and one thread at a time."""

import os
import threading
from types import TracebackType

from envtorch.errors import ClientBusy, EnvTorchError, WrongProcess

__all__ = ["ProcessGuard", "ThreadGuard", "UseGuard"]


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


class ThreadGuard:
    """A `with` block that one thread may be in. Another thread is refused, and never waits.

    An exception that a signal handler raises, as Ctrl-C does, can end a call anywhere, and `__exit__` is not
    always reached. So the thread is noted: it may enter again, and any thread may once it has ended. The
    block is given whether the last call was interrupted, or is still under way, below a signal handler.
    """

    def __init__(self, what: str, *, harmless: type[Exception] = EnvTorchError) -> None:
        """`harmless` exceptions are those that a call ends with by itself: they interrupt nothing."""
        self._what = what
        self._harmless = harmless
        self._used_by: dict[threading.Thread | None, threading.Thread] = {}
        """The thread in the block, under None; if that one has ended, the next, under the one before it."""
        self._was_interrupted = False

    def __enter__(self) -> bool:
        thread = threading.current_thread()
        user = self._used_by.setdefault(None, thread)  # in one step: of several threads, one is the first
        while user is not thread and not user.is_alive():
            user = self._used_by.setdefault(user, thread)
        if user is not thread:
            raise ClientBusy(f"another thread is in a call on this {self._what}: use one per thread")
        was_interrupted = self._was_interrupted
        self._was_interrupted = True  # until the call has come to an end of its own
        return was_interrupted

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._was_interrupted = not (error is None or isinstance(error, self._harmless))
        self._used_by.clear()


class UseGuard(ThreadGuard, ProcessGuard):
    """A `ThreadGuard` for the process that it was made in."""

    def __init__(self, what: str, *, harmless: type[Exception] = EnvTorchError) -> None:
        ThreadGuard.__init__(self, what, harmless=harmless)
        ProcessGuard.__init__(self, what)

    def __enter__(self) -> bool:
        self.require()
        return super().__enter__()
