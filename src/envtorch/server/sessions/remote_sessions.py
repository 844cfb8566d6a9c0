"""Sessions that live in another process of the same server, as the doors see them.

A server of one process is `Alone`: nothing lives elsewhere. With `--workers N` the neighbours are those of
`envtorch.server.workers`.
"""

from collections.abc import Callable
from typing import Protocol

from envtorch.protocol.extended import Message
from envtorch.protocol.formats import Format
from envtorch.protocol.wire import Reply
from envtorch.server.transport.connection import Line

__all__ = ["Alone", "FarChannels", "FarSession", "LivesElsewhere", "Neighbours"]


class LivesElsewhere(Exception):
    """The session that was to be opened is another worker's already."""

    def __init__(self, worker: int) -> None:
        super().__init__(f"worker {worker} has this session")
        self.worker = worker


class FarSession(Protocol):
    """A session of another worker that a socket here has taken up."""

    def forward(self, message: Message) -> None:
        """Pass a request on; its reply is sent when it comes."""


class FarChannels(Protocol):
    """The channels of one socket whose sessions live elsewhere."""

    held: dict[int, FarSession]

    async def take_up(self, worker: int, message: Message) -> Reply:
        """Pass on a `session` or `attach`; if it succeeds, its channel is held from then on."""

    def close(self) -> None:
        """The socket is gone: let the sessions go."""


class Neighbours(Protocol):
    """The other workers of this server."""

    async def owner(self, name: str) -> int | None:
        """Which of them holds the session of this id or token; None for none of them."""

    def channels(
        self, format: Format, send: Callable[[Message], None], lost: Callable[[], None]
    ) -> FarChannels:
        """Room for channels of one socket. `lost` is called when other sockets have taken sessions over."""
        ...

    async def rpc(self, worker: int, text: str | bytes) -> bytes:
        """What another worker answers to a JSON-RPC request."""
        ...

    async def tunnel(self, worker: int, session_id: str, line: Line) -> None:
        """Let a socket of the base wire, already accepted, converse with a session of another worker."""


class _NoChannels:
    def __init__(self) -> None:
        self.held: dict[int, FarSession] = {}

    async def take_up(self, worker: int, message: Message) -> Reply:
        raise LivesElsewhere(worker)

    def close(self) -> None:
        pass


class Alone:
    """The neighbours of a server that has none."""

    async def owner(self, name: str) -> int | None:
        return None

    def channels(
        self, format: Format, send: Callable[[Message], None], lost: Callable[[], None]
    ) -> FarChannels:
        return _NoChannels()

    async def rpc(self, worker: int, text: str | bytes) -> bytes:
        raise LivesElsewhere(worker)

    async def tunnel(self, worker: int, session_id: str, line: Line) -> None:
        raise LivesElsewhere(worker)
