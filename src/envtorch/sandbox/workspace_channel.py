"""The owner's end of one session on a writable root: requests to its init, and how its jobs ended."""

import contextlib
import errno
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from envtorch.errors import EnvironmentFailed, EnvTorchError, OutOfResources, SessionLost

from . import protocol
from .handle import process_behind
from .root_stores import StoreReply, decode_reply

__all__ = ["WorkspaceChannel", "out_of_resources", "told_as_failure"]

_REPLY_S = 60.0
_CLOSE_S = 10.0
_MOST_DESCRIPTORS = 16
_USED_UP = {
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
    errno.ENOSPC: "terminals",
    errno.EMFILE: "descriptors",
    errno.ENFILE: "descriptors",
}
"""What is missing when the init can start nothing."""


@contextlib.contextmanager
def told_as_failure(what: str) -> Iterator[None]:
    """Raises `EnvironmentFailed` for an `OSError` that an init or its child met in work of our own."""
    try:
        yield
    except EnvTorchError:
        raise
    except OSError as error:
        raise EnvironmentFailed(f"{what}: {error}") from error


def out_of_resources(what: str, number: int | None) -> OutOfResources | None:
    """The error for what an init could not start; None for another number than those of used up resources."""
    if number not in _USED_UP:
        return None
    used_up = _USED_UP[number]
    return OutOfResources(
        f"{what} could not be started: the session has used up its {used_up} ({os.strerror(number)}). "
        "End some of its processes, or wait until they have ended, and try again",
        errno=number,
    )


class WorkspaceChannel:
    """A control socket and a pidfd of the init."""

    def __init__(self, control: socket.socket, *, reply_s: float = _REPLY_S) -> None:
        """`reply_s`: the most seconds that the init may take for a reply."""
        self._control, self._reply_s = control, reply_s
        self._last_id = 0
        self._control.setblocking(False)
        self._telling = threading.Lock()
        self._jobs: dict[str, StoreReply | None] = {}
        """How each job that is of interest ended; None while it runs."""
        self.watch: int | None = None
        """Readable when the whole session has ended."""

    def await_ready(self) -> None:
        """Wait for the init's first word. Raises `EnvironmentFailed` with its reason."""
        self._await_reply("ready", 0)

    def tell(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """A request without a reply. That an init is dead, or reads no requests any more, is found out by
        waiting for what follows. Raises `SessionLost` when this end is closed, as another thread may do, and
        `OSError` for a request that is too long."""
        data = protocol.packet(request)
        with self._telling, contextlib.suppress(BrokenPipeError, ConnectionError, BlockingIOError):
            if self._control.fileno() < 0:
                raise SessionLost("the session has ended: it was closed")
            socket.send_fds(self._control, [data], list(descriptors))

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[StoreReply, list[int]]:
        """A request and its reply. Raises `OSError` as the init had it, `SessionLost` when it has gone."""
        self._last_id += 1
        self.tell({**request, "id": self._last_id}, descriptors)
        return self._await_reply("done", self._last_id)

    def ask_or_end(
        self, request: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> tuple[StoreReply, list[int]]:
        """The same for a request that changes what the session stands on. Without a reply nobody knows
        whether it was done, so the session is ended, and `SessionLost` raised."""
        try:
            return self.ask(request, descriptors)
        except EnvironmentFailed as error:
            self.end()
            raise SessionLost(
                f"{error}, so the session was ended: whether {request['op']!r} was done is not known"
            ) from error
        except KeyboardInterrupt:
            self.end()
            raise

    def _await_reply(self, event: str, id: int) -> tuple[StoreReply, list[int]]:
        deadline = time.monotonic() + self._reply_s
        while True:
            for reply, given in self.events():
                if reply.id != id:  # the late reply to a request that was given up
                    for descriptor in given:
                        os.close(descriptor)
                    continue
                if reply.event == event:
                    return reply, given
                if reply.event == "failed":
                    if event == "ready":
                        raise EnvironmentFailed(f"a session could not be made: {reply.message}")
                    raise OSError(reply.errno or 0, reply.message)
            if not self._wait(deadline):
                raise EnvironmentFailed(f"a session's init did not answer within {self._reply_s:g} s")

    def _wait(self, deadline: float) -> bool:
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        return bool(waiting.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def events(self) -> list[tuple[StoreReply, list[int]]]:
        """What the init has said since, ends of jobs noted. Raises `SessionLost` when it has gone."""
        found: list[tuple[StoreReply, list[int]]] = []
        while True:
            try:
                data, given, _, _ = socket.recv_fds(self._control, 1 << 16, _MOST_DESCRIPTORS)
            except BlockingIOError:
                return found
            except OSError as error:
                raise SessionLost(f"the session has ended: {error}") from error
            if not data:
                if found:
                    return found
                raise SessionLost("the session has ended: its init is gone")
            reply = decode_reply(data)
            if reply.event == "exited":
                if reply.job in self._jobs:
                    self._jobs[reply.job] = reply
            else:
                found.append((reply, given))

    def fileno(self) -> int:
        return self._control.fileno()

    def expect(self, job: str) -> None:
        """Note the end of a job that is about to begin, until `forget`."""
        self._jobs[job] = None

    def exit_status(self, job: str) -> int | None:
        """How a job ended; None while it runs. Raises `OutOfResources` for one that was never started."""
        self.events()
        end = self._jobs.get(job)
        if end is None:
            return None
        if refused := out_of_resources("an operation", end.errno):
            raise refused
        return end.status

    def await_exit(self, job: str, deadline: float) -> int | None:
        """The same, waited for until the deadline."""
        while (status := self.exit_status(job)) is None:
            if time.monotonic() >= deadline or not self._wait(deadline):
                return self.exit_status(job)
        return status

    def forget(self, job: str) -> None:
        self._jobs.pop(job, None)

    def process(self) -> int | None:
        """The process id of the init as this process sees it."""
        return None if self.watch is None else process_behind(self.watch)

    def is_gone(self) -> bool:
        if self.watch is None:
            return True
        waiting = select.poll()
        waiting.register(self.watch, select.POLLIN)
        return bool(waiting.poll(0))

    def end(self) -> None:
        """Kill the init, and with it every process of the session; requests raise `SessionLost` from now."""
        if self.watch is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.watch, signal.SIGKILL)
            waiting = select.poll()
            waiting.register(self.watch, select.POLLIN)
            waiting.poll(_CLOSE_S * 1000)

    def close(self) -> None:
        """End the session, and wait until all its processes have ended."""
        with self._telling:
            self._control.close()
        if self.watch is None:
            return
        waiting = select.poll()
        waiting.register(self.watch, select.POLLIN)
        if not waiting.poll(_CLOSE_S * 1000):
            self.end()
        os.close(self.watch)
        self.watch = None

    def disown(self) -> None:
        """In a forked child of the owner: close its copies of the descriptors."""
        self._control.close()
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None
