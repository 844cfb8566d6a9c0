"""The client's half of many sessions on one socket: what is asked, what is still owed, and what came."""

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from envtorch.errors import EnvTorchError, ProtocolError, SessionLost, from_wire
from envtorch.protocol.batch import Columns
from envtorch.protocol.extended import Message
from envtorch.protocol.formats import READ_ERRORS, Format

__all__ = ["Arrived", "VectorSessions"]


class Answered(msgspec.Struct, frozen=True):
    """One message from the server, its data still encoded."""

    type: str
    id: int | None = None
    ch: int = 0
    data: msgspec.Raw = msgspec.Raw(b"")


class Request(msgspec.Struct):
    """What was asked of one or more sessions, and how many of them still have to answer."""

    id: int
    kind: str
    channels: Sequence[int]
    data_of: Callable[[int], bytes]
    """The data for one channel, to be asked again with."""
    missing: int


class Arrived(msgspec.Struct, frozen=True):
    """What came for one or more sessions: columns for all of them, or one session's own reply or error."""

    channels: Sequence[int]
    columns: Columns | None = None
    payload: msgspec.Raw | None = None
    error: EnvTorchError | None = None


class VectorSessions:
    """`count` sessions, each with a token of its own and a channel, its number.

    Requests have one id for all the sessions they are for. What was asked of a session stays owed until its
    reply is there, and is asked again, under the same id, on the next socket.
    """

    def __init__(self, format: Format, count: int, *, wait_s: float) -> None:
        self.format = format
        self.count = count
        self.is_draining = False
        self.supports: set[str] = set()
        """What the server said of the sessions it opened last."""
        self._wait_s = wait_s
        self._tokens = [secrets.token_urlsafe(24) for _ in range(count)]
        self._is_open = [False] * count
        self._id = 0
        self._acknowledged: int | None = None
        self._owed: dict[int, Request] = {}
        """By channel: the request that it has not answered."""
        self._read = format.reader(list[Answered] | Answered)
        self._read_columns = format.reader(Columns)

    @property
    def owed(self) -> int:
        """How many sessions have been asked something and not answered."""
        return len(self._owed)

    def is_owed(self, channel: int) -> bool:
        return channel in self._owed

    # Opening, and taking up again.

    def greeting(self) -> bytes:
        """The first frame on a socket: each session is asked for, or taken up again."""
        return self.format.write([self._greet(channel) for channel in range(self.count)])

    def _greet(self, channel: int) -> Message:
        self._id += 1
        asked: dict[str, Any] = {"token": self._tokens[channel]}
        if not self._is_open[channel]:
            asked["wait_s"] = self._wait_s
        kind = "attach" if self._is_open[channel] else "session"
        return Message(kind, id=self._id, ch=channel, data=msgspec.Raw(self.format.write(asked)))

    def greeted(self, frame: str | bytes, missing: set[int]) -> EnvTorchError | None:
        """Strike those from `missing` that this frame answers for; say what kept one of them shut."""
        refused = None
        for answered in self._messages(frame):
            if answered.ch not in missing or answered.type not in ("session", "error"):
                continue
            missing.discard(answered.ch)
            if answered.type == "session":
                self._is_open[answered.ch] = True
                self.supports = set(self.format.read(bytes(answered.data)).get("supports", ()))
            else:
                refused = self._error(answered)
        return refused

    def again(self) -> bytes | None:
        """Everything that is owed, asked again."""
        if not self._owed:
            return None
        return self.format.write(
            [
                Message(asked.kind, id=asked.id, ch=channel, data=msgspec.Raw(asked.data_of(channel)))
                for channel, asked in self._owed.items()
            ]
        )

    # Asking.

    def steps(
        self, channels: Sequence[int], actions: Mapping[str, msgspec.Raw], one: Callable[[int], bytes]
    ) -> bytes:
        """A step for each of the channels: `actions` is what a `steps` request says of theirs, `one(channel)`
        gives one by itself."""
        self._ask("step", channels, one)
        asked = {"ch": channels, **actions}
        nobody = self.count  # so that an error for all is not taken for the reply of one
        return self.format.write(self._message("steps", nobody, self.format.write(asked)))

    def each(self, kind: str, data: Mapping[int, bytes]) -> bytes:
        """A request of that kind for each of the channels."""
        self._ask(kind, list(data), data.__getitem__)
        return self.format.write([self._message(kind, channel, raw) for channel, raw in data.items()])

    def farewell(self) -> bytes:
        """The last frame: every session ends, so that its slot is free at once."""
        is_open = [channel for channel in range(self.count) if self._is_open[channel]]
        return self.each("close", dict.fromkeys(is_open, self.format.write({})))

    def _ask(self, kind: str, channels: Sequence[int], data_of: Callable[[int], bytes]) -> None:
        if not self._owed and self._id:
            self._acknowledged = self._id
        self._id += 1
        asked = Request(self._id, kind, channels, data_of, missing=len(channels))
        self._owed.update(dict.fromkeys(channels, asked))

    def _message(self, kind: str, channel: int, data: bytes) -> Message:
        return Message(kind, id=self._id, ch=channel, data=msgspec.Raw(data), ack=self._acknowledged)

    # Hearing.

    def take(self, frame: str | bytes) -> list[Arrived]:
        """What this frame has for sessions that are owed something. The rest is of calls given up."""
        return list(self._sort(frame))

    def _sort(self, frame: str | bytes) -> Iterable[Arrived]:
        for answered in self._messages(frame):
            if answered.type == "observations":
                yield from self._columns(answered)
                continue
            owed = self._owed.get(answered.ch)
            if owed is None or owed.id != answered.id:
                self._note(answered)
                continue
            del self._owed[answered.ch]
            owed.missing -= 1
            if answered.type == "error":
                yield Arrived([answered.ch], error=self._error(answered))
            else:
                yield Arrived([answered.ch], payload=answered.data)

    def _columns(self, answered: Answered) -> Iterable[Arrived]:
        columns: Columns = self._read_columns.decode(bytes(answered.data))
        self._settle(columns.ch, answered.id)
        yield Arrived(columns.ch, columns=columns)

    def _settle(self, channels: Sequence[int], id: int | None) -> None:
        """Nothing is owed any more by these channels, which answered request `id` together."""
        owed = self._owed
        asked = owed.get(channels[0]) if channels else None
        is_whole = asked is not None and asked.id == id and asked.missing == len(channels)
        if asked is not None and is_whole and channels == asked.channels:
            asked.missing = 0  # the usual case: a request is answered in one piece
            if len(owed) == len(channels):
                owed.clear()
            else:
                deque(map(owed.__delitem__, channels), 0)
            return
        for channel in channels:
            asked = owed.get(channel)
            if asked is None or asked.id != id:
                raise ProtocolError(f"the server answered channel {channel}, which was asked nothing")
            del owed[channel]
            asked.missing -= 1

    def _messages(self, frame: str | bytes) -> list[Answered]:
        try:
            found = self._read.decode(frame)
        except READ_ERRORS as error:
            raise ProtocolError(f"the server's reply cannot be read: {error}") from error
        return found if isinstance(found, list) else [found]

    def _note(self, answered: Answered) -> None:
        if answered.type == "draining":
            self.is_draining = True
        elif answered.type == "error" and (answered.id is None or self._waits_for(answered.id)):
            self.give_up()  # a whole request was refused: none of its sessions will answer
            raise self._error(answered)

    def _waits_for(self, id: int) -> bool:
        return any(asked.id == id for asked in self._owed.values())

    def _error(self, answered: Answered) -> EnvTorchError:
        details: dict[str, Any] = self.format.read(bytes(answered.data))
        message = str(details.pop("message", "the server gave no reason"))
        return from_wire(details.pop("code", None), message, details)

    def give_up(self) -> None:
        """Nobody waits for what is owed any more."""
        self._owed.clear()

    def gone(self, why: object) -> SessionLost:
        return SessionLost(f"the connection to the server is gone: {why}")
