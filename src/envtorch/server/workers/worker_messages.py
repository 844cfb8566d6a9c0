"""What the master and a worker say to each other, and the line they say it on."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from envtorch.errors import EnvTorchError
from envtorch.server.sessions.slots import Names

__all__ = [
    "Find",
    "Found",
    "Free",
    "Full",
    "Granted",
    "HeldElsewhere",
    "MessageLine",
    "Note",
    "Take",
    "TakeTogether",
    "Withdraw",
    "WorkerPlan",
    "WorkerReady",
    "WorkerUnfit",
    "receive_plan",
    "send_plan",
]


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker must know: the master's first word to it."""

    master: int
    """The master's process id: the worker ends with it."""
    directory: str
    """Where the workers' private sockets are, each named by its worker's number."""
    secret: str
    """What workers show each other."""
    loader: str
    """`"module:function"` that makes the application of `target`."""
    target: str
    finish_s: float
    drain_s: float
    is_exposed: bool
    """Whether others than this machine can reach the server."""
    worker: int = 0
    isolation: str | None = None
    sessions: int | None = None
    preludes: list[str] = []
    record: str | None = None
    record_required: bool = False
    token_file: str | None = None
    options: dict[str, Any] = {}
    """uvicorn's own."""


class _Note(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class WorkerReady(_Note, frozen=True):
    """The worker serves. An application with no sessions of ours has no capacity."""

    capacity: int | None
    is_shared: bool
    """There is one environment for all sessions, so there can be one worker."""


class WorkerUnfit(_Note, frozen=True):
    """Why the application cannot be served: the error, as `from_wire` reads it."""

    message: str
    code: str | None = None
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: EnvTorchError) -> "WorkerUnfit":
        """What the master needs to raise the same error, with its details as text."""
        return cls(error.message, error.code, {name: str(value) for name, value in error.details.items()})


class Take(_Note, frozen=True):
    """A slot is wanted, for the session of these names."""

    call: int
    names: Names
    wait_s: float


class TakeTogether(_Note, frozen=True):
    """A slot for each of these sessions, or none."""

    call: int
    names: list[Names]


class Withdraw(_Note, frozen=True):
    """Nobody waits for this slot any more; it may have been given already."""

    call: int
    names: list[Names]


class Free(_Note, frozen=True):
    """The session is gone."""

    names: Names


class Find(_Note, frozen=True):
    """Which worker holds the session of this id or token?"""

    call: int
    name: str


class Granted(_Note, frozen=True):
    call: int


class Full(_Note, frozen=True):
    call: int
    taken: int
    capacity: int


class HeldElsewhere(_Note, frozen=True):
    """Another worker has a session of that token."""

    call: int
    worker: int


class Found(_Note, frozen=True):
    """The worker that holds it; or that it was lost, and how; or neither: nobody knows it."""

    call: int
    worker: int | None
    lost: str | None


Note = (
    WorkerReady
    | WorkerUnfit
    | Take
    | TakeTogether
    | Withdraw
    | Free
    | Find
    | Granted
    | Full
    | HeldElsewhere
    | Found
)

_read_note = msgspec.msgpack.Decoder(Note)
_read_plan = msgspec.msgpack.Decoder(WorkerPlan)
_write = msgspec.msgpack.Encoder().encode


class MessageLine:
    """One end of the stream between the master and a worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> "MessageLine":
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, note: Note) -> None:
        """Say it. When nobody is there to hear it, the reading end learns of that."""
        if not self._writer.is_closing():
            self._writer.write(_framed(note))

    async def notes(self) -> AsyncIterator[Note]:
        """What the other side says, until it is gone."""
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(4), "big")
                yield _read_note.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        self._writer.close()


def send_plan(end: socket.socket, plan: WorkerPlan) -> None:
    """The master's first word, before there is a loop on the other side."""
    end.sendall(_framed(plan))


def receive_plan(end: socket.socket) -> WorkerPlan:
    return _read_plan.decode(_exactly(end, int.from_bytes(_exactly(end, 4), "big")))


def _framed(value: object) -> bytes:
    data = _write(value)
    return len(data).to_bytes(4, "big") + data


def _exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        if not more:
            raise EOFError("the master is gone")
        data += more
    return data
