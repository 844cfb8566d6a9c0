"""Looking for an answer for a moment before going to sleep over it.

A thread that sleeps on a socket is woken by the kernel when something arrives, and where its core has fallen
asleep too, that alone may take as long as a quick step: on a virtual machine two thirds of a round trip to a
server next door. So a socket stays awake for as long as a quick answer takes, and looks again and again.

It costs processor time, and so is done only where it pays. An answer that comes later makes the next waits
sleep at once, the more of them the more often that happens: slow steps are hardly ever looked for. Between
two looks the core goes to whoever else wants it, the server perhaps. And of all threads of a process one
looks at a time, for the others could not run meanwhile.
"""

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable

__all__ = ["Alertness", "may_look"]

_LONGEST_REST = 512
_watchman = threading.Lock()


def may_look(sock: socket.socket) -> bool:
    """Whether this kind of socket can be asked for what is there, and nothing more, on this machine."""
    several = (os.cpu_count() or 1) > 1  # with one core nothing arrives while we look
    return several and hasattr(socket, "MSG_DONTWAIT") and not isinstance(sock, ssl.SSLSocket)


class Alertness:
    """How much a wait is worth staying awake for, learned from how the last ones ended."""

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._longest_s = longest_s
        self._clock = clock
        self._rest = 0
        """How many waits to sleep through, after the next one that was looked for in vain."""
        self._to_rest = 0

    def receive_into(self, sock: socket.socket, room: memoryview) -> int | None:
        """What comes within the time that it is worth to look, as its size; None to say: sleep."""
        if self._to_rest:
            self._to_rest -= 1
            return None
        if not _watchman.acquire(blocking=False):
            return None
        try:
            return self._look(sock, room)
        finally:
            _watchman.release()

    def _look(self, sock: socket.socket, room: memoryview) -> int | None:
        clock = self._clock
        until = clock() + self._longest_s
        while True:
            try:
                count = sock.recv_into(room, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if clock() < until:
                    os.sched_yield()
                    continue
                self._to_rest = self._rest = min(2 * self._rest + 1, _LONGEST_REST)
                return None
            self._rest = 0
            return count
