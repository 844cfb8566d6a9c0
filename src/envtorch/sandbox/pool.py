"""A warm pool: sandboxes that are ready before they are asked for."""

import contextlib
import os
import queue
import threading
from types import TracebackType
from typing import Self

from envtorch.errors import EnvTorchError, SessionLost, WrongProcess

from .policy import Policy
from .sandbox import Sandbox

__all__ = ["Pool"]


class Pool:
    """Keeps `size` unused sandboxes of one policy ready. A sandbox is used once, and never put back."""

    def __init__(self, policy: Policy | None = None, *, size: int = 4) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        self._policy = policy or Policy()
        self._ready: queue.Queue[Sandbox | EnvTorchError] = queue.Queue()
        self._wanted = threading.Semaphore(size)
        self._closed = threading.Event()
        self._filler = threading.Thread(target=self._fill, name="sandbox-pool", daemon=True)
        self._filler.start()
        self._owner = os.getpid()

    def take(self, *, timeout_s: float | None = None) -> Sandbox:
        """A sandbox that is ready. The caller closes it. Raises `queue.Empty` when the time is over."""
        if self._owner != os.getpid():
            raise WrongProcess.of(self, self._owner)
        if self._closed.is_set():
            raise SessionLost("the pool is closed")
        found = self._ready.get(timeout=timeout_s)
        self._wanted.release()
        if isinstance(found, EnvTorchError):
            raise found
        return found

    def close(self) -> None:
        """End the sandboxes that nobody took."""
        if self._owner != os.getpid():
            return
        self._closed.set()
        self._wanted.release()
        self._filler.join()
        with contextlib.suppress(queue.Empty):
            while True:
                found = self._ready.get_nowait()
                if isinstance(found, Sandbox):
                    found.close()

    def _fill(self) -> None:
        while True:
            self._wanted.acquire()
            if self._closed.is_set():
                return
            try:
                self._ready.put(Sandbox(self._policy))
            except EnvTorchError as error:  # told to whoever takes next
                self._ready.put(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
