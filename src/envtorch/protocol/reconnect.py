"""How a client talks to its server over sockets that may fail: the one place that decides to try again.

`Reconnecting` is written as flows. They yield what has to be done with a socket (`Connect`, `Send`,
`Receive`, `Ping`, `Sleep`, `Drop`) and are sent what came of it, or thrown one of three things:

* `ConnectFailed`: no new socket. It says whether the connection was refused, or broken on the way.
* `Cut`: the socket is gone.
* `Late`: the deadline of a `Send` or `Receive` has passed.

A shell that blocks and one that awaits do these things; neither has a rule of its own.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from envtorch.errors import (
    ClientBusy,
    ConnectFailed,
    Draining,
    EnvTorchError,
    MessageTooLarge,
    ProtocolError,
    SessionLost,
)
from envtorch.protocol.backoff import new_backoff
from envtorch.protocol.channel import Arrived
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.extended import FORMATS
from envtorch.protocol.formats import READ_ERRORS, Format
from envtorch.protocol.outage import Outage
from envtorch.protocol.wire import Answer, Ask

__all__ = [
    "Connect",
    "Cut",
    "Drop",
    "Late",
    "Move",
    "Ping",
    "Receive",
    "Reconnecting",
    "Send",
    "Sleep",
    "SocketFlow",
    "Step",
    "Timings",
    "connected",
]

T = TypeVar("T")

ANSWER_MARGIN_S = 5.0
"""How much longer than the server's deadline to wait for its reply that the deadline passed."""
FAREWELL_S = 3.0
"""How long `close` tries to tell the server."""
CANCEL_S = 1.0
"""How long a client that stops waiting tries to tell the server."""
GOING_AWAY = frozenset((1001, 1012))
TOO_LARGE = 1009
TAKEN_OVER = 4000


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a socket, in place of the one that is there; sent back: the subprotocol, None for OpenEnv's
    wire."""

    timeout_s: float
    replica: str | None = None
    """Which of the servers behind a proxy has the sessions."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send one message. A socket whose peer is gone does not fail here but at the next `Receive`, as the peer
    may have said why. After `Late` the socket may hold half a message, and is of no further use."""

    frame: bytes
    deadline: float
    is_binary: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message; sent back: its payload."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask the peer for a sign of life."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the socket, if there is one; `politely` with WebSocket's closing message."""

    politely: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Use another server from the next `Connect` on; sent back: its address."""

    timeout_s: float


Step = Connect | Send | Receive | Ping | Sleep | Drop | Move
SocketFlow = Generator[Step, Any, T]


class Cut(Exception):
    """The connection is gone. `code` is WebSocket's, where there was one, `by_us` when this side gave it."""

    def __init__(self, reason: str, *, code: int | None = None, by_us: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.by_us = by_us


class Late(Exception):
    """A deadline has passed. `heard` says whether any bytes arrived meanwhile."""

    def __init__(self, *, heard: bool = False) -> None:
        super().__init__("the deadline has passed")
        self.heard = heard


@dataclass(frozen=True, slots=True)
class Timings:
    """How long to wait for what, in seconds; `ClientOptions` says what each means to a user."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float = 60.0
    wait_s: float = 0.0
    reconnect_s: float = 60.0
    heartbeat_s: float = 20.0
    refused_s: float = 1.0
    """How long a server that refuses connections is tried again. Sessions live in the server's memory: when
    nothing listens at its address they are gone, unless a proxy in between is being restarted."""

    def attempt_s(self, left_s: float) -> float:
        """How long one attempt to connect may take: an attempt that stalls leaves time for another."""
        return min(max(left_s, 0.001), self.connect_timeout_s, 2 * self.heartbeat_s)


def connected(timings: Timings, clock: Callable[[], float]) -> SocketFlow[Format | None]:
    """The first socket to a server. The format of the wire that was agreed on; None for OpenEnv's.

    An attempt that breaks on the way is repeated until `connect_timeout_s`; a refusal is raised.
    """
    deadline = clock() + timings.connect_timeout_s
    backoff = new_backoff()
    while True:
        try:
            agreed = yield Connect(timings.attempt_s(deadline - clock()))
            return FORMATS.get(agreed or "")
        except ConnectFailed as error:
            delay = backoff.next_s()
            if not error.details.get("was_cut") or clock() + delay >= deadline:
                raise
        yield Sleep(delay)


class Reconnecting:
    """The sessions of one client or vector, over as many sockets as it takes.

    A request is noted before it is sent and owed until its reply arrives. When the socket fails, the flow
    that waits connects again, attaches every session, and sends what is owed again under the same ids; the
    server answers a repeated id from its ledger, so nothing runs twice.
    """

    def __init__(
        self,
        channels: ClientChannels,
        timings: Timings,
        *,
        clock: Callable[[], float],
        is_connected: bool = False,
        unharmful: tuple[type[BaseException], ...] = (),
    ) -> None:
        """`unharmful` are exceptions that may end a call without spoiling the socket it was waiting on."""
        self.channels = channels
        self.timings = timings
        self._is_connected = is_connected
        self._unharmful = unharmful
        self._clock = clock
        self._outage: Outage | None = None
        self._strays = 0
        """Sockets that were left, on which an `attach` may still be on its way to the server."""
        self._interruptions = 0

    @property
    def format(self) -> Format:
        return self.channels.format

    def farewell(self) -> bytes | None:
        """A frame that closes every session on the socket, whose replies nobody reads."""
        return self.channels.farewell() if self._is_connected else None

    # Calls.

    def open(self) -> SocketFlow[None]:
        """Open every session, or none. Raises what kept one of them from opening."""
        limit_s = self.timings.connect_timeout_s + self.timings.wait_s
        deadline = self._clock() + limit_s
        try:
            yield from self.get_ready(deadline)
            refused = self.channels.refused()
            if refused is not None:
                raise refused
        except Late:
            yield from self.close()
            raise ConnectFailed(f"the server did not open a session within {limit_s:g} s") from None
        except EnvTorchError:
            yield from self.close()
            raise
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._take_back()
            self.channels.closed(range(len(self.channels)))
            raise

    def _take_back(self) -> SocketFlow[None]:
        """End the sessions that are being opened. On another socket, if this one was left in the middle of
        the message that asks for them: it may have been sent whole."""
        if not self._is_connected:
            try:
                agreed = yield Connect(CANCEL_S, self.channels.replica)
            except EnvTorchError:
                return  # their grace period ends them
            if FORMATS.get(agreed or "") is not self.format:
                return
            self._is_connected = True
            yield from self.tell(self.channels.greeting())
        yield from self.tell(self.channels.farewell())

    def get_ready(self, deadline: float) -> SocketFlow[None]:
        """Have every session on a socket, over as many attempts as the time allows. Raises `Late`."""
        while not self._is_ready:
            try:
                yield from self._get_ready(deadline)
            except Cut as cut:
                yield from self._disconnect(cut)

    def exchange(self, ask: Ask, timeout_s: float | None = None, channel: int = 0) -> SocketFlow[Answer]:
        """One session's reply to one request. A reset of a lost or closed session opens another first."""
        refusal = self.channels.refusal(channel)
        if refusal is not None:
            if ask.type != "reset":
                raise refusal
            self.channels.renew(channel)
        frame = self.channels.each(ask.type, {channel: ask.data}, **self.within(timeout_s))
        asked = self.channels.owed_id(channel)
        yield from self.send(frame)
        while came := (yield from self.arrivals()):
            for arrived in came:
                if arrived.id == asked and channel in arrived.channels:
                    return self._answer(arrived)
        raise ClientBusy.interrupted()

    def _answer(self, arrived: Arrived) -> Answer:
        raw = bytes(arrived.payload)
        if arrived.error is not None and not raw:
            raise arrived.error
        try:
            return Answer(arrived.type, self.format.read(raw) if raw else {})
        except READ_ERRORS as error:
            raise ProtocolError(f"the server's reply cannot be read: {error}") from error

    def within(self, timeout_s: float | None) -> dict[str, Any]:
        """When a request ends: the caller's limit is kept by the server, the client's own by this side."""
        limit_s = self.timings.message_timeout_s if timeout_s is None else timeout_s + ANSWER_MARGIN_S
        return {"deadline": self._clock() + limit_s, "limit_s": limit_s, "timeout_s": timeout_s}

    def send(self, frame: bytes | None) -> SocketFlow[None]:
        """Send a request that `channels` has noted. None, and what cannot be sent now, is left to
        `arrivals`."""
        if frame is None:
            return
        try:
            yield from self._send(frame, self.channels.next_deadline())
        except Late:
            pass  # until its deadline, which has passed, it could be sent on another socket
        except BaseException:
            self.channels.give_up()
            raise

    def arrivals(self) -> SocketFlow[list[Arrived]]:
        """Wait until something that is owed has arrived; nothing when nothing is owed.

        A request whose deadline passes arrives as `TimedOut`, and the server is told to cancel it. Raises
        `SessionLost` or `Draining` when there is no way back to the server.
        """
        interruptions = self._interruptions
        try:
            while True:
                if self._interruptions != interruptions:
                    raise ClientBusy.interrupted()
                arrived = self.channels.arrived()
                if arrived or not self.channels.owed:
                    return arrived
                try:
                    deadline = self.channels.next_deadline()
                    if not self._is_ready:
                        yield from self._get_ready(deadline)
                    else:
                        self.channels.take((yield from self._hear(deadline)))
                except Cut as cut:
                    yield from self._disconnect(cut)
                except Late:
                    expired = self.channels.expire(self._clock(), is_connected=self._is_connected)
                    yield from self.tell(expired)
        except GeneratorExit:
            self._spoil()
            self.channels.give_up()
            raise
        except BaseException as error:
            yield from self.tell(self.channels.give_up())
            if not isinstance(error, (EnvTorchError, *self._unharmful)):
                self._spoil()  # a message may have been read and not been taken
            raise

    def interrupted(self) -> SocketFlow[None]:
        """A call was left anywhere on its way: give up what is owed, and use another socket from now on."""
        self._interruptions += 1
        yield from self.tell(self.channels.give_up())
        self._spoil()

    def close(self) -> SocketFlow[None]:
        """End every session, and the socket. A server that cannot be told ends them by their grace period."""
        yield from self.tell(self.channels.give_up())
        try:
            yield from self.say_close(self.channels.alive)
            while self.channels.owed:
                yield from self.arrivals()
        except EnvTorchError:
            pass  # there is nobody left to tell
        coming = self.channels.coming
        self.channels.closed(set(range(len(self.channels))).difference(coming))
        if coming:
            yield from self._take_back()
        self.channels.closed(coming)
        self._spoil()
        yield Drop(politely=True)

    def say_close(self, channels: Sequence[int]) -> SocketFlow[None]:
        """Ask the server to end these sessions; the replies are owed."""
        if channels:
            within = {"deadline": self._clock() + FAREWELL_S, "limit_s": FAREWELL_S, "timeout_s": None}
            yield from self.send(self.channels.each("close", dict.fromkeys(channels), **within))

    # The socket.

    @property
    def _is_ready(self) -> bool:
        return self._is_connected and self.channels.is_ready and not self.channels.has_unsent

    def _get_ready(self, deadline: float) -> SocketFlow[None]:
        """Have a socket with every session on it, and everything that is owed sent on it."""
        if not self._is_connected:
            yield from self._reconnect(deadline)
        greeting = self.channels.greeting()
        if greeting is not None:
            yield from self._send(greeting, deadline)
        while self._is_connected and not self.channels.is_ready:
            self.channels.take((yield from self._hear(deadline)))
        if not self._is_connected:
            return
        self._outage = None
        owed = self.channels.resend()
        if owed is not None:
            yield from self._send(owed, deadline)

    def _send(self, frame: bytes, deadline: float) -> SocketFlow[None]:
        """Send a message whole, or drop the socket: half a message is never followed by another."""
        try:
            yield Send(frame, deadline, self.format.is_binary)
        except Cut as cut:
            yield from self._disconnect(cut)
        except Late as late:
            yield from self._disconnect(late)
            raise
        except BaseException:
            self._spoil()
            raise

    def _reconnect(self, deadline: float) -> SocketFlow[None]:
        """Connect, as often as the outage's budget and the caller's deadline allow."""
        outage = self._present_outage()
        while True:
            if outage.reason is not None:
                delay = outage.next_delay(self._clock())
                if delay is None:
                    raise self._gone(outage.reason)
                left_s = deadline - self._clock()
                yield Sleep(min(delay, max(left_s, 0.0)))
                if delay >= left_s:
                    raise Late
            try:
                attempt_s = self.timings.attempt_s(deadline - self._clock())
                agreed = yield Connect(attempt_s, self.channels.replica)
            except ConnectFailed as error:
                outage.failed(self._clock(), error)
                continue
            if FORMATS.get(agreed or "") is not self.format:
                raise self._gone(ConnectFailed("the server there speaks another wire now"))
            self._is_connected = True
            return

    def _hear(self, deadline: float) -> SocketFlow[bytes]:
        """The next message. A socket that stays silent even when it is pinged is `Cut`."""
        was_pinged = False
        heartbeat_s = self.timings.heartbeat_s
        while True:
            try:
                frame: bytes = yield Receive(min(deadline, self._clock() + heartbeat_s))
                return frame
            except Late as late:
                if self._clock() >= deadline:
                    raise
                if late.heard:
                    was_pinged = False
                elif was_pinged:
                    raise Cut(f"the server was silent for {2 * heartbeat_s:g} s") from None
                else:
                    yield Ping(self._clock() + heartbeat_s)
                    was_pinged = True

    def _disconnect(self, failure: Exception) -> SocketFlow[None]:
        """Drop the socket; what is owed will be sent on the next one."""
        self._spoil()
        yield Drop()
        outage = self._present_outage()
        outage.reason = failure
        code = failure.code if isinstance(failure, Cut) else None
        outage.is_shut_down |= self.channels.is_draining or code in GOING_AWAY
        if code == TAKEN_OVER and not self._strays:
            raise self._gone(failure, "another client has attached to the session")
        self._strays += -1 if code == TAKEN_OVER else 1  # each stray takes the sessions over once at most
        if isinstance(failure, Cut) and code == TOO_LARGE:
            self._outage = None
            self.channels.fail(MessageTooLarge(str(failure)))

    def _present_outage(self) -> Outage:
        if self._outage is None:
            budget_s = self.timings.reconnect_s
            self._outage = Outage(self._clock() + budget_s, refused_s=self.timings.refused_s)
        return self._outage

    def _spoil(self) -> None:
        """The socket is not to be used any more; the next one replaces it."""
        self._is_connected = False
        self.channels.disconnected()

    def _gone(self, why: Exception, said: str | None = None) -> EnvTorchError:
        """There is no way back: every session is lost."""
        error: EnvTorchError
        if self.channels.is_draining:
            error = Draining("the server has shut down")
        else:
            details = {} if said is None else {"is_taken_over": True}
            error = SessionLost(said or f"the connection to the server is gone: {why}", **details)
        error.__cause__ = why
        self.abandon(error)
        return error

    def abandon(self, error: EnvTorchError) -> None:
        """Leave the server, and with it every session."""
        self._spoil()
        self._outage = None
        self.channels.lose_all(error)

    def tell(self, frame: bytes | None) -> SocketFlow[None]:
        """Send a message whose reply nobody waits for, if that can be done now."""
        if frame is None or not self._is_connected:
            return
        with suppress(Late):
            yield from self._send(frame, self._clock() + CANCEL_S)
