"""The requests to the process that holds the layers, of which several may be under way.

Each comes with a socket for its own reply: one that its sender no longer waits for reaches nobody. What takes
long is done in child processes, so that an agent with very many files holds up nobody but itself.
"""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from . import guest_wire as wire
from . import kernel

_MESSAGE_CHARACTERS = 500
"""Few enough that what a child says is written to its pipe at once."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """What a request is answered with; the descriptors are closed here when they have been sent."""

    message: Mapping[str, Any]
    descriptors: Sequence[int] = ()


Work = Callable[[], None]
"""What a child process does."""
Steps = Generator[Work, None, StoreAnswer]
"""A request under way: it yields what a child shall do, and goes on when that is done, or with `OSError`."""


@dataclass(slots=True)
class _Request:
    steps: Steps
    replies: "socket.SocketType"
    descriptors: Sequence[int]


class StoreRequests:
    """Serves the owner at the other end of a channel. `begin` says what a request takes."""

    def __init__(
        self, channel: "socket.SocketType", begin: Callable[[Mapping[str, Any], Sequence[int]], Steps]
    ) -> None:
        self._channel, self._begin = channel, begin
        self._waiting = select.poll()
        self._waiting.register(channel, select.POLLIN)
        self._in_children: dict[int, _Request] = {}
        """By the pipe on which a child says how it went."""

    def serve(self) -> None:
        """Until the owner goes away."""
        while True:
            for descriptor, _ in self._waiting.poll():
                if descriptor in self._in_children:
                    self._resume(descriptor)
                    continue
                packet = wire.receive_packet(self._channel)
                if packet is None:
                    return
                request, (replies, *descriptors) = packet
                steps = self._begin(request, descriptors)
                self._advance(_Request(steps, socket.SocketType(fileno=replies), descriptors))

    def _resume(self, pipe: int) -> None:
        """A child has ended, or said why it failed."""
        request = self._in_children.pop(pipe)
        self._waiting.unregister(pipe)
        said = os.read(pipe, 1 << 16)
        os.close(pipe)
        if not said:
            self._advance(request, OSError("the process that merged layers was ended"))
            return
        outcome = json.loads(said)
        failed = outcome["failed"]
        self._advance(request, None if failed is None else OSError(outcome["errno"], failed))

    def _advance(self, request: _Request, failure: OSError | None = None) -> None:
        """Go on with a request until it waits for a child, or is answered."""
        while True:
            try:
                work = next(request.steps) if failure is None else request.steps.throw(failure)
            except StopIteration as end:
                return _reply(request, end.value)
            except (OSError, KeyError) as error:
                number = error.errno if isinstance(error, OSError) else None
                message = error.strerror if isinstance(error, OSError) and error.filename is None else None
                told = {"event": "failed", "message": message or str(error) or repr(error), "errno": number}
                return _reply(request, StoreAnswer(told))
            try:
                pipe = _start_child(work)
            except OSError as error:
                failure = error
                continue
            self._in_children[pipe] = request
            self._waiting.register(pipe, select.POLLIN)
            return None


def _reply(request: _Request, answer: StoreAnswer) -> None:
    with contextlib.suppress(ConnectionError):  # nobody waits for it any more
        wire.send_packet(request.replies, answer.message, answer.descriptors)
    request.replies.close()
    for descriptor in (*answer.descriptors, *request.descriptors):
        os.close(descriptor)


def _start_child(work: Work) -> int:
    """Have a child do something; answers with the pipe on which it says how it went."""
    pipe, teller = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    try:
        process = os.fork()
    except OSError:
        os.close(pipe)
        os.close(teller)
        raise
    if process == 0:
        _work_in_child(work, teller, parent)
    os.close(teller)
    return pipe


def _work_in_child(work: Work, teller: int, parent: int) -> NoReturn:
    try:
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() == parent:
            work()
            os.write(teller, b'{"failed": null}')
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else None
        told = {"failed": (str(error) or repr(error))[:_MESSAGE_CHARACTERS], "errno": number or 0}
        os.write(teller, json.dumps(told).encode())
    finally:
        os._exit(0)
