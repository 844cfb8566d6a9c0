"""Many sessions over one socket, and over as many more as it takes when that one drops."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

from envtorch.client.blocking_socket import BlockingSocket, Cut
from envtorch.client.links import connect_socket
from envtorch.client.options import ClientOptions
from envtorch.client.resuming import FAREWELL_S, new_backoff, one_try
from envtorch.errors import ConnectFailed, EnvTorchError, TimedOut, Unsupported
from envtorch.protocol.extended import FORMATS
from envtorch.protocol.vector import Arrived, VectorSessions

__all__ = ["VectorLink"]

T = TypeVar("T")


class VectorLink:
    """The socket of a vector. What is owed when it drops is asked again, under the same ids."""

    def __init__(self, options: ClientOptions, count: int) -> None:
        self._options = options
        self._deadline = time.monotonic() + options.connect_timeout_s + options.wait_s
        self._socket: BlockingSocket | None = self._connect()
        format = FORMATS.get(self._socket.subprotocol or "")
        if format is None:
            self._socket.close()
            raise Unsupported(
                "this server speaks OpenEnv's wire only, which has one session per socket: "
                "open that many clients instead"
            )
        self.sessions = VectorSessions(format, count, wait_s=options.wait_s)
        try:
            self._greet()
        except (Cut, ConnectFailed) as error:
            self._recover(error)
        except BaseException:
            self.close()  # all or none
            raise

    def _connect(self) -> BlockingSocket:
        return connect_socket(self._options, timeout_s=one_try(self._deadline, self._options))

    def _greet(self) -> None:
        """Have every session on this socket."""
        self._send(self.sessions.greeting())
        missing = set(range(self.sessions.count))
        refused = None
        while missing:
            refused = self.sessions.greeted(self._hear(), missing) or refused
        if refused is not None:
            raise refused

    def ask(self, frame: bytes, timeout_s: float | None) -> None:
        """Send requests; `answers` gives what comes of them."""
        patience = self._options.message_timeout_s if timeout_s is None else timeout_s
        self._deadline = time.monotonic() + patience
        try:
            self._ready()
            self._send(frame)
        except (Cut, ConnectFailed) as error:
            self._recover(error)

    def answers(self) -> Iterator[list[Arrived]]:
        """What is owed, frame by frame. Raises `TimedOut` when some of it does not come in time."""
        while self.sessions.owed:
            try:
                self._ready()
                heard = self._hear()
            except (Cut, ConnectFailed) as error:
                self._recover(error)
                continue
            except TimedOut:
                self.sessions.give_up()
                raise TimedOut("not every session answered in time", usable=False) from None
            yield self.sessions.take(heard)

    def close(self) -> None:
        """End every session. A line that fails just now is given a moment; then their grace ends them."""
        self.sessions.give_up()
        with suppress(EnvTorchError):
            self.ask(self.sessions.farewell(), FAREWELL_S)
            for _ in self.answers():
                pass
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    # Trying, and trying again.

    def _recover(self, error: Exception) -> None:
        """A new socket, with every session on it, and everything owed asked again."""
        backoff = new_backoff()
        give_up = min(time.monotonic() + self._options.reconnect_s, self._deadline)
        while True:
            self._abandon()
            delay = backoff.next_s()
            if time.monotonic() + delay >= give_up:
                raise self.sessions.gone(error) from error
            time.sleep(delay)
            try:
                self._ready()
            except (Cut, ConnectFailed) as again:
                error = again
            else:
                return

    def _ready(self) -> None:
        if self._socket is not None:
            return
        self._socket = self._connect()
        self._greet()
        owed = self.sessions.again()
        if owed is not None:
            self._send(owed)

    def _abandon(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.abandon()

    def _send(self, frame: bytes) -> None:
        assert self._socket is not None
        self._socket.send(frame, deadline=self._deadline, binary=self.sessions.format.is_binary)

    def _hear(self) -> bytes:
        assert self._socket is not None
        return self._socket.receive_while_alive(self._deadline, heartbeat_s=self._options.heartbeat_s)
