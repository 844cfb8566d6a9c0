"""A blocking link that survives its socket: it reconnects, takes the session up, and asks again."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat

from envtorch.client.blocking_socket import BlockingSocket, Cut
from envtorch.client.links import Link, SocketLink, connect_socket
from envtorch.client.options import ClientOptions
from envtorch.errors import ConnectFailed, EnvTorchError, TimedOut
from envtorch.protocol.client import ask_fork
from envtorch.protocol.extended import FORMATS
from envtorch.protocol.flow import drive
from envtorch.protocol.formats import Format
from envtorch.protocol.resume import Backoff, Resumable
from envtorch.protocol.wire import Answer, Ask

__all__ = ["ANSWER_MARGIN_S", "FAREWELL_S", "ResumingLink", "new_backoff", "one_try", "open_link"]

ANSWER_MARGIN_S = 5.0
"""How much longer than the server's deadline to wait for its word that the deadline passed."""

FAREWELL_S = 3.0
"""How long to try to say goodbye."""


def open_link(options: ClientOptions) -> Link:
    """A session on the server, over the best wire that it speaks."""
    deadline = time.monotonic() + options.connect_timeout_s
    backoff = new_backoff()
    while True:
        try:
            socket = connect_socket(options, timeout_s=one_try(deadline, options))
            break
        except ConnectFailed as error:
            if not error.details.get("was_cut") or time.monotonic() >= deadline:
                raise
        time.sleep(backoff.next_s())
    format = FORMATS.get(socket.subprotocol or "")
    if format is None:
        return SocketLink(socket, options)
    link = ResumingLink(socket, options, Resumable(format, wait_s=options.wait_s))
    try:
        link.open()
    except BaseException:
        link.abandon()
        raise
    return link


class ResumingLink:
    """One session on the extended wire, over as many sockets as it takes."""

    def __init__(self, socket: BlockingSocket | None, options: ClientOptions, session: Resumable) -> None:
        self._socket = socket
        self._options = options
        self._session = session
        self._is_greeted = False

    @property
    def format(self) -> Format:
        return self._session.format

    def open(self) -> None:
        """Have the session opened: until then there is none to lose."""
        deadline = time.monotonic() + self._options.connect_timeout_s + self._options.wait_s
        self._persist(lambda: self._connected(deadline), deadline)

    def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        patience = self._options.message_timeout_s if timeout_s is None else timeout_s + ANSWER_MARGIN_S
        deadline = time.monotonic() + patience
        id, frame = self._session.request(ask, timeout_s)
        try:
            if self._is_greeted:
                with suppress(Cut):
                    return self._ask(id, frame, deadline)
                self.abandon()
            return self._persist(lambda: self._attempt(id, frame, deadline), deadline)
        except TimedOut as error:
            if "usable" in error.details:
                raise
            raise TimedOut(f"{ask.type} was not answered within {patience:g} s") from None

    def fork(self, count: int, *, timeout_s: float | None) -> Sequence[Link]:
        tokens = drive(ask_fork(count, self.format), lambda ask: self.exchange(ask, timeout_s=timeout_s))
        copies = [ResumingLink(None, self._options, Resumable(self.format, token=token)) for token in tokens]
        try:
            for copy in copies:
                copy.open()  # now: until somebody holds it, its lease runs
        except BaseException:
            for copy in copies:
                copy.close()
            raise
        return copies

    def close(self) -> None:
        """End the session. A line that fails just now is given a moment; then the session's grace ends it."""
        deadline = time.monotonic() + FAREWELL_S
        id, frame = self._session.farewell()
        with suppress(EnvTorchError):
            self._persist(lambda: self._attempt(id, frame, deadline), deadline)
        socket = self._release()
        if socket is not None:
            socket.close()

    # Trying, and trying again.

    def _persist(self, attempt: Callable[[], Answer], deadline: float) -> Answer:
        """What `attempt` gives, over as many sockets as it takes and the time allows."""
        backoff = give_up = None
        while True:
            try:
                return attempt()
            except (Cut, ConnectFailed) as error:
                self.abandon()
                now = time.monotonic()
                backoff = backoff or new_backoff()
                give_up = give_up or now + self._options.reconnect_s
                delay = backoff.next_s()
                if now + delay >= min(give_up, deadline):
                    raise self._session.gone(error) from error
                time.sleep(delay)

    def _attempt(self, id: int, frame: bytes, deadline: float) -> Answer:
        if not self._is_greeted:
            self._connected(deadline)
        return self._ask(id, frame, deadline)

    def _connected(self, deadline: float) -> Answer:
        """See to it that there is a socket, and that it has the session."""
        if self._socket is None:
            self._socket = connect_socket(self._options, timeout_s=one_try(deadline, self._options))
        if not self._is_greeted:
            id, frame = self._session.greeting()
            self._session.greeted(self._ask(id, frame, deadline))
            self._is_greeted = True
        return Answer("session")

    def _ask(self, id: int, frame: bytes, deadline: float) -> Answer:
        socket = self._socket
        assert socket is not None
        socket.send(frame, deadline=deadline, binary=self._session.format.is_binary)
        while True:
            heard = socket.receive_while_alive(deadline, heartbeat_s=self._options.heartbeat_s)
            answer = self._session.find(id, heard)
            if answer is not None:
                return answer

    def abandon(self) -> None:
        """Let the socket go; the session waits for another one, or for its end."""
        socket = self._release()
        if socket is not None:
            socket.abandon()

    def _release(self) -> BlockingSocket | None:
        socket, self._socket = self._socket, None
        self._is_greeted = False
        return socket


def one_try(deadline: float, options: ClientOptions) -> float:
    """How long one attempt to connect may take: a line that stalls shall leave time for another."""
    left = max(deadline - time.monotonic(), 0.001)
    return min(left, options.connect_timeout_s, 2 * options.heartbeat_s)


def new_backoff() -> Backoff:
    return Backoff(random.random() for _ in repeat(None))  # noqa: S311  # spreads load, keeps no secret
