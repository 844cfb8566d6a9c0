"""Sessions that live in another process of the same server, as the doors see them.

A server of one process has `NoPeers`. With `--workers N` the peers are those of
`envtorch.server.workers`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from envtorch.protocol.extended import Message
from envtorch.protocol.formats import Format
from envtorch.protocol.wire import Reply
from envtorch.server.transport.connection import Line

__all__ = ["HeldByPeer", "NoPeers", "PeerChannels", "PeerSession", "Peers"]


class HeldByPeer(Exception):
    """The session that was to be opened is another worker's already."""

    def __init__(self, worker: int) -> None:
        super().__init__(f"worker {worker} has this session")
        self.worker = worker


class PeerSession(Protocol):
    """A session of another worker that a socket of this worker is attached to."""

    def forward(self, message: Message, settled: Callable[[], None]) -> None:
        """Pass a request on; its reply is sent when it comes. `settled` is called then, or when none will."""


class PeerChannels(Protocol):
    """The channels of one socket whose sessions belong to other workers."""

    held: dict[int, PeerSession]

    async def take_up(self, worker: int, message: Message, closes: Sequence[Message]) -> Reply:
        """Pass on a `session` or `attach`; if it succeeds, its channel is held from then on.

        `closes` is every `close` of the channel that comes meanwhile. They are passed on, too, if the socket
        goes before the answer has come.
        """

    def close(self) -> None:
        """The socket is gone: let the sessions go."""


class Peers(Protocol):
    """The other workers of this server."""

    async def owner(self, name: str) -> int | None:
        """Which of them holds the session of this id or token; None for none of them."""

    def channels(
        self,
        format: Format,
        send: Callable[[Message], None],
        room: Callable[[], Awaitable[None]],
        lost: Callable[[], None],
    ) -> PeerChannels:
        """The channels of one socket, none yet. `room` waits until `send` may be called again.

        `lost` is called when other sockets have taken sessions over.
        """
        ...

    async def rpc(self, worker: int, text: str | bytes) -> bytes:
        """What another worker answers to a JSON-RPC request."""
        ...

    async def tunnel(self, worker: int, session_id: str, line: Line) -> None:
        """Let a socket of the base wire, already accepted, converse with a session of another worker."""


class _NoChannels:
    def __init__(self) -> None:
        self.held: dict[int, PeerSession] = {}

    async def take_up(self, worker: int, message: Message, closes: Sequence[Message]) -> Reply:
        raise HeldByPeer(worker)

    def close(self) -> None:
        pass


class NoPeers:
    """A server of one process: no session belongs to another."""

    async def owner(self, name: str) -> int | None:
        return None

    def channels(
        self,
        format: Format,
        send: Callable[[Message], None],
        room: Callable[[], Awaitable[None]],
        lost: Callable[[], None],
    ) -> PeerChannels:
        return _NoChannels()

    async def rpc(self, worker: int, text: str | bytes) -> bytes:
        raise HeldByPeer(worker)

    async def tunnel(self, worker: int, session_id: str, line: Line) -> None:
        raise HeldByPeer(worker)
