"""Processes of our own that work for this one: shared, and replaced when they die."""

import atexit
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Generic, TypeVar

__all__ = ["HelperProcess", "HelperProcesses"]

logger = logging.getLogger(__name__)


class HelperProcess:
    """A Python process without site-packages that answers on a socket, and ends when this end is closed."""

    def __init__(self, code: str, output: IO[bytes], *, timeout_s: float) -> None:
        """`code` is run with the folder of the sandbox and the number of its socket as arguments. Waiting for
        an answer takes at most `timeout_s`."""
        self.channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(timeout_s)
        with far:
            folder = str(Path(__file__).parent)
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", "-B", "-c", code, folder, str(far.fileno())],
                pass_fds=[far.fileno()],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def disown(self) -> None:
        """In a forked child of the owner: close its copy of the channel, and leave the process alone."""
        self.process.returncode = 0
        self.channel.close()

    def close(self) -> None:
        """End the process, and with it all that it holds."""
        self.channel.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


Helper = TypeVar("Helper", bound=HelperProcess)


class HelperProcesses(Generic[Helper]):
    """The helpers of this process, by name. They end with it; a forked child has none, and starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Helper] = {}
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._disown)

    def get(self, name: str, start: Callable[[], Helper], *, warning: str) -> Helper:
        """The living helper of that name, started if need be. `warning` is logged when one is replaced."""
        with self._lock:
            found = self._found.get(name)
            if found is None or not found.is_alive():
                if found is not None:
                    logger.warning(warning)
                    found.close()
                found = self._found[name] = start()
            return found

    def close(self) -> None:
        """End every helper."""
        with self._lock:
            while self._found:
                self._found.popitem()[1].close()

    def _disown(self) -> None:
        self._lock = threading.Lock()  # a thread of the owner's may have held it
        for found in self._found.values():
            found.disown()
        self._found.clear()
