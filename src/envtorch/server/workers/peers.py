"""The other workers of a server, as one of them sees them: reached through their private sockets."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpcore
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from envtorch.errors import Draining, EnvTorchError, ProtocolError, SessionLost
from envtorch.protocol.extended import FORMATS, Message
from envtorch.protocol.formats import Format
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.remote_sessions import PeerChannels
from envtorch.server.transport.connection import Line
from envtorch.server.workers.frame_forwarding import SocketTunnel
from envtorch.server.workers.peer_channels import Channels
from envtorch.server.workers.peer_directory import address_of
from envtorch.server.workers.shared_counters import Page
from envtorch.server.workers.shared_slots import SharedSlots
from envtorch.server.workers.worker_messages import WorkerPlan

__all__ = ["RPC_PATH", "SECRET_HEADER", "SOCKET_PATH", "WorkerPeers"]

SECRET_HEADER = "EnvTorch-Worker"  # noqa: S105 - a header's name
"""Shown by workers to each other. What carries it was let in at the door where it arrived."""
SOCKET_PATH = "/.envtorch/ws"
RPC_PATH = "/.envtorch/rpc"

KEPT_S = 2.0
"""How long an idle connection is kept: shorter than the neighbour's patience, so that none ends in use."""
DIAL_S = 30.0
UNREAD_FRAMES = 2
"""How many frames of a neighbour may wait to be passed on before no more are read."""

Header = tuple[bytes, bytes]


class WorkerPeers:
    """Finds sessions of other workers, and talks to them."""

    def __init__(self, plan: WorkerPlan, page: Page, slots: SharedSlots, sessions: Sessions) -> None:
        self.worker = plan.worker
        self.secret = plan.secret
        self._directory = plan.directory
        self._page = page
        self._slots = slots
        self._sessions = sessions
        self._pools: dict[int, httpcore.AsyncConnectionPool] = {}

    def others(self) -> list[int]:
        """The numbers of the other workers."""
        return [number for number in range(self._page.workers) if number != self.worker]

    async def owner(self, name: str) -> int | None:
        return await self._slots.find(name)

    def gone(self) -> EnvTorchError:
        """What to say of a session whose worker does not answer any more."""
        if self._page.is_stopping or self._sessions.draining:
            return Draining("the server is shutting down")
        return SessionLost("the session is gone: the worker that held it ended")

    # Sockets.

    def channels(
        self,
        format: Format,
        send: Callable[[Message], None],
        room: Callable[[], Awaitable[None]],
        lost: Callable[[], None],
    ) -> PeerChannels:
        subprotocol = next(name for name, known in FORMATS.items() if known is format)

        async def dial(worker: int) -> ClientConnection:
            return await self._dial(worker, SOCKET_PATH, [Subprotocol(subprotocol)])

        return Channels(format, self._sessions, dial, self.gone, send, room, lost)

    async def _dial(
        self,
        worker: int,
        target: str,
        subprotocols: Sequence[Subprotocol] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ClientConnection:
        """A socket to another worker: as a worker, or with the headers of whoever it is for."""
        shown = dict(headers) if headers is not None else {SECRET_HEADER: self.secret}
        shown["EnvTorch-Pings"] = "unanswered"  # while this worker's own client does not read
        try:
            return await unix_connect(
                address_of(self._directory, worker),
                uri=f"ws://{shown.pop('host', 'worker')}{target}",
                subprotocols=subprotocols,
                additional_headers=shown,
                compression=None,
                max_size=None,
                max_queue=UNREAD_FRAMES,
                ping_interval=None,
                open_timeout=DIAL_S,
            )
        except WebSocketException as error:
            raise self.gone() from error

    async def tunnel(self, worker: int, session_id: str, line: Line) -> None:
        try:
            far = await self._dial(worker, f"{SOCKET_PATH}?session_id={quote(session_id)}")
        except (OSError, TimeoutError) as error:
            raise self.gone() from error
        await SocketTunnel(far, line, self._sessions).serve()

    async def first(self, path: str, headers: Mapping[str, str], line: Callable[[], Awaitable[Line]]) -> None:
        """Let a socket converse with the first worker, on its own path. Raises what `_dial` raises."""
        far = await self._dial(0, path, headers=headers)
        await SocketTunnel(far, await line(), self._sessions, is_answered=False).serve()

    # Requests.

    async def rpc(self, worker: int, text: str | bytes) -> bytes:
        body = text.encode() if isinstance(text, str) else text
        headers = [
            (b"host", b"worker"),
            (SECRET_HEADER.encode(), self.secret.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        async with self.request(worker, b"POST", RPC_PATH.encode(), headers, body) as response:
            return await response.aread()

    @asynccontextmanager
    async def request(
        self, worker: int, method: bytes, target: bytes, headers: list[Header], content: Any = None
    ) -> AsyncIterator[httpcore.Response]:
        """A request to another worker, and its response, to be read inside the block.

        Raises `SessionLost`, or `Draining`, when the worker does not answer, and `ProtocolError` when the
        request cannot be sent.
        """
        # Blanks around a value are no part of it (RFC 9110, 5.5); a server may leave them, a client may not.
        headers = [(name, value.strip(b" \t")) for name, value in headers]
        self._sessions.meter.busy(+1)  # the server waits for it when it shuts down
        try:
            url = httpcore.URL(scheme=b"http", host=b"worker", port=None, target=target)
            try:
                response = await self._pool(worker).handle_async_request(
                    httpcore.Request(method, url, headers=headers, content=content)
                )
            except httpcore.LocalProtocolError as error:
                raise ProtocolError(
                    f"the request cannot be passed on to the worker that holds its session: {error}"
                ) from error
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
                raise self.gone() from error
            try:
                yield response
            finally:
                await response.aclose()
        finally:
            self._sessions.meter.busy(-1)

    def _pool(self, worker: int) -> httpcore.AsyncConnectionPool:
        pool = self._pools.get(worker)
        if pool is None:
            pool = self._pools[worker] = httpcore.AsyncConnectionPool(
                uds=address_of(self._directory, worker),
                max_connections=None,
                max_keepalive_connections=64,
                keepalive_expiry=KEPT_S,
            )
        return pool
