"""The answers of one socket on the extended wire, on their way out."""

import asyncio
from collections.abc import Callable
from operator import itemgetter

import msgspec

from envtorch.protocol.batch import write_rows
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.extended import Message, error_reply, write_frame
from envtorch.protocol.formats import Format
from envtorch.protocol.host import failure_of
from envtorch.server.transport.connection import UNSENT_BYTES, Line

__all__ = ["AnswerFrames", "data_size"]

NO_CHANNEL = -1
"""The channel of a message that is for several."""


class AnswerFrames:
    """Writes answers that come together as one frame. A single session's are sent one by one.

    `has_several` tells whether the socket has several sessions.
    """

    def __init__(self, line: Line, format: Format, has_several: Callable[[], bool]) -> None:
        self._line = line
        self._format = format
        self._has_several = has_several
        self._messages: list[Message] = []
        self._batches: dict[int, list[tuple[int, Encoded]]] = {}
        self._bytes = 0
        self._will_flush = self._is_closed = False

    def add(self, message: Message) -> None:
        self._messages.append(message)
        self._count(data_size(message))

    def add_step(self, id: int, channel: int, result: Encoded) -> None:
        """Add one step of a batch, to be answered in one message with the others of this turn."""
        self._batches.setdefault(id, []).append((channel, result))
        self._count(result.size)

    def has_room(self, go_on: Callable[[], None]) -> bool:
        """The line's `has_room`, with what was added here."""
        return self._line.has_room(go_on, more=self._bytes)

    def gather(self) -> None:
        """Send nothing before `flush` is called, unless it becomes too much to keep."""
        self._will_flush = True

    def flush(self) -> None:
        self._will_flush = False
        if self._batches:
            self._messages += self._written_batches()
        messages, self._messages, self._bytes = self._messages, [], 0
        if messages and not self._is_closed:
            self._line.send(write_frame(messages, self._format), binary=self._format.is_binary)

    def close(self) -> None:
        """The socket has ended: what is added from now on is dropped. Sessions keep their answers."""
        self._is_closed = True

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._will_flush and self._bytes > UNSENT_BYTES:
            self.flush()
            self._will_flush = True
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._will_flush:
            return
        if not self._has_several():
            self.flush()
            return
        self._will_flush = True
        asyncio.get_running_loop().call_soon(self.flush)

    def _written_batches(self) -> list[Message]:
        batches, self._batches = self._batches, {}
        written = []
        for id, steps in batches.items():
            steps.sort(key=itemgetter(0))
            try:
                written.append(self._written(id, steps))
            except Exception as error:
                reply = error_reply(failure_of("request", error), self._format)
                written += [Message.of(reply, id=id, ch=channel) for channel, _ in steps]
        return written

    def _written(self, id: int, steps: list[tuple[int, Encoded]]) -> Message:
        if len(steps) == 1:
            channel, encoded = steps[0]
            return Message("observation", id, channel, msgspec.Raw(encoded.data()))
        channels = [channel for channel, _ in steps]
        data = write_rows([encoded for _, encoded in steps], channels, self._format)
        return Message("observations", id=id, ch=NO_CHANNEL, data=msgspec.Raw(data))


def data_size(message: Message) -> int:
    """How many bytes of data a message has."""
    return memoryview(message.data).nbytes
