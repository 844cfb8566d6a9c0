"""The descriptors by which the owner holds one sandbox: two sockets, and a descriptor of its init."""

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import protocol

__all__ = ["INTERPRETER", "Handle", "process_behind"]

INTERPRETER = "interpreter"
"""The job of an init that runs the agent's code."""


@dataclass(slots=True, eq=False)
class Handle:
    """The owner's ends of the sockets, the sandbox's ends until they are given away, and a pidfd."""

    control: socket.socket
    far_control: socket.socket
    data: socket.socket
    far_data: socket.socket
    reader: protocol.FrameReader
    watch: int | None = None
    """A pidfd of the init: readable when the whole sandbox has ended."""
    doors: list[int] = field(default_factory=list)
    """The namespaces of a sandbox that waits for a fork to enter them."""
    jobs: set[str] = field(default_factory=lambda: {INTERPRETER})
    """Jobs whose end is of interest."""
    exits: dict[str, protocol.Control] = field(default_factory=dict)
    """How each of them that ended did so, as the init saw it."""
    _telling: threading.Lock = field(default_factory=threading.Lock)
    """Held while something is sent to the init: the monitor may, too."""

    @classmethod
    def new(cls, output_bytes: int) -> "Handle":
        control, far_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data, far_data = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        control.setblocking(False)
        data.setblocking(False)
        return cls(control, far_control, data, far_data, protocol.FrameReader(output_bytes))

    def tell(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request to the init. That an init is dead is found out by waiting for its answer. Raises
        `OSError` for a request that is too long."""
        data = protocol.packet(request)
        with self._telling, contextlib.suppress(BrokenPipeError, ConnectionError, BlockingIOError):
            socket.send_fds(self.control, [data], list(descriptors))

    def signal(self, number: int, job: str = INTERPRETER) -> None:
        """Have the init send a signal to one of its jobs."""
        self.tell({"op": "signal", "job": job, "number": number})

    def events(self) -> list[tuple[protocol.Control, list[int]]] | None:
        """What the init has said since; None when it has gone."""
        found: list[tuple[protocol.Control, list[int]]] = []
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.control, 65536, 16)
            except BlockingIOError:
                return found
            except OSError:
                return found or None
            if not data:
                return found or None
            said = protocol.decode_control(data)
            if said.event == "exited" and said.job in self.jobs:
                self.exits[said.job] = said
            found.append((said, descriptors))

    def watched(self) -> list[int]:
        """Descriptors that tell of the end of the sandbox."""
        return [] if self.watch is None else [self.watch]

    def is_gone(self) -> bool:
        """Whether the init, and so everything in the sandbox, has ended."""
        if self.watch is None:
            return False
        poll = select.poll()  # and not select, which knows the first 1,024 descriptors only
        poll.register(self.watch, select.POLLIN)
        return bool(poll.poll(0))

    def host_process(self) -> int | None:
        """The process id of the init as this process sees it."""
        return None if self.watch is None else process_behind(self.watch)

    def kill(self) -> None:
        """End the whole sandbox at once."""
        if self.watch is not None:
            with contextlib.suppress(ProcessLookupError, OSError):
                signal.pidfd_send_signal(self.watch, signal.SIGKILL)

    def close_doors(self) -> None:
        for door in self.doors:
            os.close(door)
        self.doors = []

    def close(self) -> None:
        """Close every descriptor."""
        for channel in (self.control, self.far_control, self.data, self.far_data):
            channel.close()
        for descriptor in self.watched():
            os.close(descriptor)
        self.close_doors()
        self.watch = None


def process_behind(watch: int) -> int | None:
    """The id, as this process sees it, of the process that a pidfd is of; None when it has gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{watch}").read_text().splitlines():
            if line.startswith("Pid:") and int(line.split()[1]) > 0:
                return int(line.split()[1])
    return None
