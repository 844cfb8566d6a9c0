"""The client's half of a session on the extended wire: ids, and how to take the session up again."""

import secrets
from collections.abc import Iterable

import msgspec

from envtorch.errors import Draining, SessionLost
from envtorch.protocol.extended import Message, TaggedAnswer, read_answers, write_frame
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.wire import Answer, Ask

__all__ = ["Backoff", "Resumable"]


class Resumable:
    """One session, whatever sockets it goes over.

    The session's token is the client's own choice, so that asking for the session twice, because the first
    answer never came, opens it once. A request keeps its id over every socket it is sent on.
    """

    def __init__(
        self,
        format: Format,
        *,
        wait_s: float = 0.0,
        grace_s: float | None = None,
        token: str | None = None,
    ) -> None:
        """With a `token`, the session that it opens exists already, and is taken up."""
        self.format = format
        self.is_open = token is not None
        self.is_draining = False
        self._wait_s = wait_s
        self._grace_s = grace_s
        self._token = token or secrets.token_urlsafe(24)
        self._last_id = 0
        self._arrived = 0

    def greeting(self) -> tuple[int, bytes]:
        """The first frame on a socket: ask for the session, or for the one that was had before."""
        if self.is_open:
            return self._message("attach", self.format.write({"token": self._token}))
        asked = {"token": self._token, "wait_s": self._wait_s, "grace_s": self._grace_s}
        return self._message("session", self.format.write(asked))

    def greeted(self, answer: Answer) -> None:
        """The server's answer to the greeting. Raises `SessionLost` when the session is really gone."""
        try:
            answer.expect("session")
        except SessionLost as error:
            raise SessionLost(f"the session could not be taken up again: {error.message}") from error
        self.is_open = True

    def request(self, ask: Ask, timeout_s: float | None) -> tuple[int, bytes]:
        """A new request, and its frame, which may be sent as often as need be."""
        return self._message(ask.type, ask.data, timeout_s)

    def withdrawal(self, id: int) -> bytes:
        """Take request `id` back. It is answered itself; the answer to this is of no interest."""
        return self._message("cancel", self.format.write({"id": id}))[1]

    def farewell(self) -> tuple[int, bytes]:
        """The last request: end the session, so that its slot is free at once."""
        return self._message("close", None)

    def _message(self, kind: str, data: bytes | None, timeout_s: float | None = None) -> tuple[int, bytes]:
        self._last_id += 1
        if self.format is JSON and data and timeout_s is None:  # nearly every request there is
            return self._last_id, b'{"type":"%b","id":%d,"data":%b,"ack":%d}' % (
                kind.encode(),
                self._last_id,
                data,
                self._arrived,
            )
        message = Message(
            kind,
            id=self._last_id,
            data=msgspec.Raw(data if data is not None else b""),
            timeout_s=timeout_s,
            ack=self._arrived or None,
        )
        return self._last_id, write_frame([_without_empty_data(message)], self.format)

    def find(self, id: int, frame: str | bytes) -> Answer | None:
        """The answer to request `id`, if this frame holds it. Others in it are of calls given up."""
        found = None
        for tagged in read_answers(frame, self.format):
            if tagged.id == id:
                found = tagged.answer
            else:
                self._note(tagged)
        if found is not None:
            self._arrived = id  # calls take turns: all before this one are answered or given up
        return found

    def _note(self, tagged: TaggedAnswer) -> None:
        if tagged.id is None and tagged.answer.type == "draining":
            self.is_draining = True
        elif tagged.id is None and tagged.answer.type == "error":
            raise tagged.answer.error()

    def gone(self, why: object) -> SessionLost | Draining:
        """What to raise when there is no way back to the server."""
        if self.is_draining:
            return Draining("the server has shut down")
        return SessionLost(f"the connection to the server is gone: {why}")


def _without_empty_data(message: Message) -> Message:
    """A message that leaves `data` out, rather than one whose data is no value at all."""
    return message if bytes(message.data) else msgspec.structs.replace(message, data=_NOTHING)


_NOTHING = Message("").data


class Backoff:
    """How long to wait before the next attempt: longer each time, never quite the same."""

    def __init__(self, rolls: Iterable[float], *, first_s: float = 0.02, most_s: float = 2.0) -> None:
        self._rolls = iter(rolls)
        self._next_s = first_s
        self._most_s = most_s

    def next_s(self) -> float:
        """Seconds to wait: between half and all of a delay that doubles."""
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._most_s)
        return delay * (0.5 + next(self._rolls) / 2)
