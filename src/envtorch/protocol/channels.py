"""The sessions on one socket, as their client sees them: what was asked of each, and what it still owes.

A socket carries one session per channel; most carry one. Nothing here reads a clock or touches a socket: the
flow in `reconnect` does, and feeds frames in.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from envtorch.errors import (
    ClientClosed,
    EnvTorchError,
    MessageTooLarge,
    ProtocolError,
    SessionLost,
    TimedOut,
    from_wire,
)
from envtorch.protocol.arguments import shown
from envtorch.protocol.batch import Columns, pick
from envtorch.protocol.channel import Arrived, Channel, ChannelPhase, Request
from envtorch.protocol.extended import NOTHING, Message
from envtorch.protocol.formats import READ_ERRORS, Format
from envtorch.replica_names import REPLICA_NAME

__all__ = ["ClientChannels"]

NO_CHANNEL = 2**31 - 1
"""The channel of a request for many sessions: an error about the whole request is no session's own reply."""

REOPEN_WAIT_S = 1.0
"""How long a session that replaces a lost one waits for a slot: the lost one's may be about to be free."""


class Answered(msgspec.Struct, frozen=True):
    """One message from the server, its data still encoded."""

    type: str
    id: int | None = None
    ch: int = 0
    data: msgspec.Raw = NOTHING


_ANY_MESSAGE = list[Answered] | Answered


class ClientChannels:
    """The sessions of one client or vector.

    A request has one id for all the sessions it is for. A session owes its reply until that arrives or the
    caller gives up, and a request that is owed is sent again, under its id, on the next socket.
    """

    def __init__(
        self, format: Format, count: int = 1, *, wait_s: float = 0.0, token: str | None = None
    ) -> None:
        """With a `token`, the one session that it belongs to."""
        self.format = format
        self.is_draining = False
        self.supports: set[str] = set()
        """What the server said about the session it opened last."""
        self.is_deterministic: bool | None = None
        self.replica: str | None = None
        """What the environment says of itself, and the name by which a proxy finds its server."""
        self.max_message_bytes: int | None = None
        """The largest message the server takes, where it said so."""
        self._wait_s = wait_s
        self._channels = [Channel(wait_s, token) for _ in range(count)]
        self._id = 0
        self._owed: dict[int, Request] = {}
        self._unsent: set[int] = set()
        """Channels whose owed request has not been sent on the current socket."""
        self._is_to_greet = True
        self._greeted: dict[int, int] = {}
        """Ids of requests to open or attach that are not answered yet, and their channels."""
        self._given_up: dict[int, int] = {}
        """By channel: the newest request that nobody waits for any more."""
        self._arrived: list[Arrived] = []
        self._read = format.reader(_ANY_MESSAGE)
        self._read_columns = format.reader(Columns)

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def owed(self) -> int:
        """How many sessions were asked something and have not answered."""
        return len(self._owed)

    def is_owed(self, channel: int) -> bool:
        return channel in self._owed

    def owed_id(self, channel: int) -> int:
        """The id of the request that a session has not answered."""
        return self._owed[channel].id

    def phase_of(self, channel: int) -> ChannelPhase:
        return self._channels[channel].phase

    def refusal(self, channel: int) -> EnvTorchError | None:
        """Why a session can only be reset, as it is lost or closed; None when it takes every request."""
        if (found := self._channels[channel]).phase is ChannelPhase.CLOSED:
            return ClientClosed("the session was closed; reset() opens another")
        return found.error

    def next_deadline(self) -> float:
        """When the caller of the most urgent request stops waiting."""
        if len(self._owed) == 1:
            (request,) = self._owed.values()
            return request.deadline
        return min(request.deadline for request in set(self._owed.values()))

    # Opening and attaching.

    def add(self, token: str) -> int:
        """Take a session that exists already; the number of its channel."""
        self._is_to_greet = True
        self._channels.append(Channel(self._wait_s, token))
        return len(self._channels) - 1

    def shorten(self, count: int) -> bytes | None:
        """Drop the channels that were added last, of which nothing was asked, so that `count` are left.

        A frame that closes their sessions, as `farewell` does.
        """
        frame = self.farewell(first=count)
        del self._channels[count:]
        self._greeted = {id: number for id, number in self._greeted.items() if number < count}
        return frame

    def renew(self, channel: int) -> None:
        """Put a new session in the place of a lost or closed one."""
        old = self._channels[channel]
        if old.phase in (ChannelPhase.LOST, ChannelPhase.CLOSED):
            new = Channel(max(self._wait_s, REOPEN_WAIT_S))
            new.was_held = old.was_held
            self._channels[channel] = new
            self._is_to_greet = True

    def greeting(self) -> bytes | None:
        """A frame that opens or attaches every session that is not on the socket; None when all are."""
        if not self._is_to_greet:
            return None
        self._is_to_greet = False
        batch: list[Message] = []
        waiting = set(self._greeted.values())
        for number, channel in enumerate(self._channels):
            if channel.phase in (ChannelPhase.NEW, ChannelPhase.DETACHED) and number not in waiting:
                if channel.was_held:  # the channel is free for another session only when this one is closed
                    channel.was_held = False
                    batch.append(self._message("close", number, None))
                batch.append(self._greet(number, channel))
        return self.format.write(batch[0] if len(batch) == 1 else batch) if batch else None

    def _greet(self, number: int, channel: Channel) -> Message:
        asked: dict[str, Any] = {"token": channel.token}
        if channel.phase is ChannelPhase.NEW:
            asked["wait_s"] = channel.wait_s
            channel.was_asked_for = True
        kind = "session" if channel.phase is ChannelPhase.NEW else "attach"
        message = self._message(kind, number, self.format.write(asked))
        self._greeted[self._id] = number
        return message

    @property
    def is_ready(self) -> bool:
        """Every session that is not lost or closed is on the current socket."""
        return not (self._is_to_greet or self._greeted)

    def disconnected(self) -> None:
        """The socket is gone: sessions have to be attached again, and requests sent again."""
        self._is_to_greet = True
        self._greeted.clear()
        self._unsent.update(self._owed)
        for channel in self._channels:
            channel.was_held = False
            if channel.phase is ChannelPhase.HELD:
                channel.phase = ChannelPhase.DETACHED

    def lose_all(self, error: EnvTorchError) -> None:
        """There is no way back to the server: every session is lost, and nothing more will arrive."""
        for number, channel in enumerate(self._channels):
            if channel.phase is not ChannelPhase.CLOSED:
                self._lose(number, error)
        self.replica = None
        self.is_draining = False
        self._owed.clear()
        self._unsent.clear()
        self._arrived.clear()

    def _lose(self, number: int, error: EnvTorchError) -> None:
        channel = self._channels[number]
        channel.was_held = channel.phase is ChannelPhase.HELD
        channel.phase, channel.error = ChannelPhase.LOST, error

    def refused(self) -> EnvTorchError | None:
        """Why one of the sessions could not be opened."""
        return next((channel.error for channel in self._channels if channel.error is not None), None)

    # Asking.

    def steps(
        self,
        channels: Sequence[int],
        actions: Mapping[str, msgspec.Raw],
        one: Callable[[int], bytes],
        **within: Any,
    ) -> bytes | None:
        """A step for each of the channels: `actions` is what a `steps` request holds for them, `one(channel)`
        gives a single channel's action. The frame, or None when it has to be sent one by one later."""
        asked = self.format.write({"ch": channels, **actions})
        return self._ask(Request(0, "step", channels, one, len(channels), **within), ("steps", asked))

    def each(self, kind: str, data: Mapping[int, bytes | None], **within: Any) -> bytes | None:
        """A request of that kind for each of the channels; the frame, or None when it is to be sent later."""
        return self._ask(Request(0, kind, list(data), data.__getitem__, len(data), **within), None)

    def _ask(self, request: Request, together: tuple[str, bytes] | None) -> bytes | None:
        self._id += 1
        request.id = self._id
        if together is None:
            batch = [self._alone(request, channel) for channel in request.channels]
            frame = self.format.write(batch[0] if len(batch) == 1 else batch)
        else:
            frame = self.format.write(self._envelope(request, together[0], NO_CHANNEL, together[1]))
        try:
            self.require_size(len(frame), len(request.channels))
        except MessageTooLarge:
            self._id -= 1
            raise
        self._owed.update(dict.fromkeys(request.channels, request))
        if self.is_ready:  # so all of them are on the socket: who is lost is not asked
            return frame
        self._unsent.update(request.channels)
        return None

    def require_size(self, size: int, sessions: int = 1) -> None:
        """Raise `MessageTooLarge` for a message, to so many sessions, that the server would not take."""
        limit = self.max_message_bytes
        if limit is None or size <= limit:
            return
        error = MessageTooLarge.of(size, limit, "the server's")
        if sessions > 1:
            error = MessageTooLarge(
                f"{error.message}: it is for {sessions} sessions together; send() to fewer at a time, "
                "or set ENVTORCH_MAX_MESSAGE_BYTES on the server",
                **error.details,
            )
        raise error

    def resend(self) -> bytes | None:
        """Every owed request that the current socket has not carried yet; None when there is none."""
        unsent = sorted(self._unsent & self._owed.keys())
        self._unsent.clear()
        if not unsent:
            return None
        batch = [self._alone(self._owed[channel], channel) for channel in unsent]
        return self.format.write(batch[0] if len(batch) == 1 else batch)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def _alone(self, request: Request, channel: int) -> Message:
        return self._envelope(request, request.kind, channel, request.data_of(channel))

    def _envelope(self, request: Request, kind: str, channel: int, data: bytes | None) -> Message:
        return Message(
            kind,
            id=request.id,
            ch=channel,
            data=NOTHING if data is None else msgspec.Raw(data),
            timeout_s=request.timeout_s,
            ack=request.id - 1,  # a session that is asked something owes no earlier reply
        )

    def _message(self, kind: str, channel: int, data: bytes | None) -> Message:
        self._id += 1
        return Message(kind, id=self._id, ch=channel, data=NOTHING if data is None else msgspec.Raw(data))

    # Giving up.

    def expire(self, now: float, *, is_connected: bool = True) -> bytes | None:
        """Give up the requests whose deadline has passed: each of their sessions gets `TimedOut`, whose
        details say whether there was a connection, and whether the server has missed a deadline of its own.

        A frame that tells the server to cancel them; None when nothing expired, or nothing was sent.
        """
        late = [number for number, request in self._owed.items() if request.deadline <= now]
        return self._give_up(late, late_details={"is_connected": is_connected})

    def give_up(self, channels: Iterable[int] | None = None) -> bytes | None:
        """Nobody waits any more for what these channels owe, or all, nor for what has arrived and was not
        taken; a frame that tells the server so."""
        self._arrived.clear()
        given_up = list(self._owed) if channels is None else [n for n in channels if n in self._owed]
        return self._give_up(given_up)

    def withdrawals(self) -> bytes | None:
        """A frame that cancels what is owed; the requests themselves are still answered."""
        batch = [self._cancel(number, request.id) for number, request in self._owed.items()]
        return self.format.write(batch) if batch else None

    def _give_up(self, channels: Sequence[int], late_details: dict[str, Any] | None = None) -> bytes | None:
        batch: list[Message] = []
        for number in channels:
            request = self._owed.pop(number)
            request.missing -= 1
            self._given_up[number] = request.id
            if number not in self._unsent and self._channels[number].phase is ChannelPhase.HELD:
                batch.append(self._cancel(number, request.id))
            self._unsent.discard(number)
            if late_details is not None:
                late = TimedOut(request.late(), **late_details, is_server_late=request.timeout_s is not None)
                self._arrived.append(Arrived([number], "error", request.id, error=late))
        return self.format.write(batch) if batch else None

    def _cancel(self, channel: int, id: int) -> Message:
        return self._message("cancel", channel, self.format.write({"id": id}))

    def fail(self, error: EnvTorchError) -> None:
        """Every request that is owed ends with this error; the sessions go on."""
        for number, request in self._owed.items():
            self._given_up[number] = request.id
            self._arrived.append(Arrived([number], "error", request.id, error=error))
        self._owed.clear()
        self._unsent.clear()

    def farewell(self, *, first: int = 0) -> bytes | None:
        """A frame that closes every session that is on the socket or coming to it, from the channel `first`
        on, whose replies nobody reads."""
        held = [n for n, channel in enumerate(self._channels) if channel.phase is ChannelPhase.HELD]
        here = (ChannelPhase.NEW, ChannelPhase.DETACHED)
        held += [n for n in self._greeted.values() if self._channels[n].phase in here]
        held = [number for number in held if number >= first]
        batch = [self._cancel(number, self._owed[number].id) for number in held if number in self._owed]
        batch += [self._message("close", number, None) for number in held]
        return self.format.write(batch) if batch else None

    def closed(self, channels: Iterable[int]) -> None:
        """These sessions were closed."""
        for number in channels:
            self._channels[number].phase = ChannelPhase.CLOSED

    @property
    def alive(self) -> list[int]:
        """The channels whose sessions the server still has, as far as we know."""
        gone = (ChannelPhase.LOST, ChannelPhase.CLOSED, ChannelPhase.NEW)
        return [n for n, channel in enumerate(self._channels) if channel.phase not in gone]

    @property
    def coming(self) -> list[int]:
        """The channels whose sessions were asked for, and no answer has arrived: the server may have them."""
        new = [(n, channel) for n, channel in enumerate(self._channels) if channel.phase is ChannelPhase.NEW]
        return [number for number, channel in new if channel.was_asked_for]

    # Reading.

    def arrived(self) -> list[Arrived]:
        """What has arrived since the last call."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def take(self, frame: str | bytes) -> None:
        """Read a frame. What answers a request that nobody waits for is passed over."""
        try:
            found = self._read.decode(frame)
        except READ_ERRORS as error:
            raise ProtocolError(f"the server's reply cannot be read: {error}") from error
        for answered in found if isinstance(found, list) else (found,):
            self._sort(answered)

    def _sort(self, answered: Answered) -> None:
        if answered.type == "observations":
            self._take_columns(answered)
            return
        owed = self._owed.get(answered.ch)
        if owed is None or owed.id != answered.id:
            self._note(answered)
            return
        del self._owed[answered.ch]
        owed.missing -= 1
        if answered.type == "error":
            error = self._error(answered)
            if isinstance(error, SessionLost):
                self._lose(answered.ch, error)
            self._arrived.append(Arrived([answered.ch], "error", owed.id, payload=answered.data, error=error))
        else:
            self._arrived.append(Arrived([answered.ch], answered.type, owed.id, payload=answered.data))

    def _take_columns(self, answered: Answered) -> None:
        try:
            columns: Columns = self._read_columns.decode(bytes(answered.data))
        except READ_ERRORS as error:
            raise ProtocolError(f"the server's reply cannot be read: {error}") from error
        if self._settle(columns.ch, answered.id):
            self._arrived.append(Arrived(columns.ch, id=answered.id, columns=columns))
            return
        for index, number in enumerate(columns.ch):  # some of these were given up: the others, one by one
            owed = self._owed.get(number)
            if owed is not None and owed.id == answered.id:
                del self._owed[number]
                owed.missing -= 1
                reply = pick(bytes(answered.data), index, self.format)
                self._arrived.append(Arrived([number], id=owed.id, payload=msgspec.Raw(reply.data())))
            elif answered.id is None or answered.id > self._given_up.get(number, 0):
                raise ProtocolError(f"the server answered channel {number}, which was asked nothing")

    def _settle(self, channels: Sequence[int], id: int | None) -> bool:
        """Strike out what these channels owed, if it was all of it request `id`."""
        owed = self._owed
        asked = owed.get(channels[0]) if channels else None
        is_whole = asked is not None and asked.id == id and asked.missing == len(channels)
        if asked is not None and is_whole and channels == asked.channels:
            asked.missing = 0  # the usual case: a request is answered in one piece
            if len(owed) == len(channels):
                owed.clear()
            else:
                deque(map(owed.__delitem__, channels), 0)
            return True
        if any((request := owed.get(channel)) is None or request.id != id for channel in channels):
            return False
        for channel in channels:
            owed.pop(channel).missing -= 1
        return True

    def _note(self, answered: Answered) -> None:
        """A message that answers no request of a caller."""
        if answered.id in self._greeted:
            self._take_greeting(self._greeted.pop(answered.id), answered)
        elif answered.type == "draining":
            self.is_draining = True
        elif answered.type == "error" and self._is_about_a_batch(answered):
            error = self._error(answered)
            for number in [n for n, request in self._owed.items() if request.id == answered.id]:
                del self._owed[number]
                self._given_up[number] = answered.id or 0
            raise error
        elif answered.type == "error" and answered.id is None:
            raise self._error(answered)

    def _is_about_a_batch(self, answered: Answered) -> bool:
        return answered.ch == NO_CHANNEL and any(owed.id == answered.id for owed in self._owed.values())

    def _take_greeting(self, number: int, answered: Answered) -> None:
        channel = self._channels[number]
        if answered.type == "session":
            channel.phase = ChannelPhase.HELD
            told: dict[str, Any] = self.format.read(bytes(answered.data))
            self.supports = set(told.get("supports", ()))
            self.is_deterministic = told.get("deterministic")
            self.replica = _replica(told.get("replica"))
            self.max_message_bytes = told.get("max_message_bytes", self.max_message_bytes)
            return
        error = self._error(answered)
        if channel.phase is ChannelPhase.DETACHED and isinstance(error, SessionLost):
            error = SessionLost(f"the session could not be attached again: {error.message}")
        self._lose(number, error)
        self._unsent.discard(number)
        owed = self._owed.pop(number, None)
        if owed is not None:
            self._arrived.append(Arrived([number], "error", owed.id, error=error))

    def _error(self, answered: Answered) -> EnvTorchError:
        details: dict[str, Any] = self.format.read(bytes(answered.data))
        message = str(details.pop("message", "the server gave no reason"))
        return from_wire(details.pop("code", None), message, details)


def _replica(name: Any) -> str | None:
    """A server's name among several, which becomes a header of later handshakes."""
    if name is not None and not (isinstance(name, str) and REPLICA_NAME.fullmatch(name)):
        raise ProtocolError(f"the server says it is replica {shown(name)}, which is no name of a replica")
    return name
