"""`WS /ws`: which conversation a socket has, and in which session."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.datastructures import Headers
from starlette.websockets import WebSocket

from envtorch.errors import Draining, EnvTorchError
from envtorch.protocol.extended import FORMATS
from envtorch.protocol.wire import error_reply
from envtorch.server.doors.base_wire import BaseConversation
from envtorch.server.doors.extended_wire import ExtendedConversation
from envtorch.server.doors.http_routes import error_response
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.sessions.other_replicas import REPLICA_HEADER, elsewhere, replica_of
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.server.transport.connection import STALLED_S, Line, accept
from envtorch.settings import ServerMode

__all__ = ["SocketDoor"]

TRY_AGAIN_LATER = 1013

ARRIVAL_PATIENCE_S = 0.25
"""How long a new socket waits for a slot: the one before it may just be closing."""


class SocketDoor:
    """Drives sessions over WebSockets. A peer that reads nothing for `stalled_s` is dropped."""

    def __init__(
        self,
        sessions: Sessions,
        rpc: RpcDoor,
        mode: ServerMode,
        max_bytes: int,
        *,
        stalled_s: float | None = STALLED_S,
    ) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self._mode = mode
        self._max_bytes = max_bytes
        self._stalled_s = stalled_s

    async def endpoint(self, websocket: WebSocket) -> None:
        """Serve one socket, unless a proxy had better give its handshake to another replica."""
        refusal = self._refusal(websocket)
        if refusal is not None:
            await _deny(websocket, refusal)
        else:
            await self.serve(websocket)

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one socket: on the extended wire if the client offers it, else on OpenEnv's."""
        for offered in websocket.scope.get("subprotocols", ()):
            format = FORMATS.get(offered)
            if format is not None:
                line = await self._accept(websocket, offered)
                await ExtendedConversation(
                    line, format, self._sessions, self._rpc, self._mode, self._max_bytes
                ).serve()
                return
        session_id = websocket.query_params.get("session_id")
        await self._base(await self._accept(websocket), session_id, websocket.headers)

    def _refusal(self, websocket: WebSocket) -> EnvTorchError | None:
        """Why a handshake is refused that a proxy had better give to another replica.

        A client that names no replica, in the header or in the session's id, has no session yet, and a server
        that is leaving opens none.
        """
        own = self._sessions.replica
        if own is None:
            return None
        named = websocket.headers.get(REPLICA_HEADER) or replica_of(
            websocket.query_params.get("session_id", "")
        )
        if named is None and self._sessions.is_leaving:
            return Draining("the server is shutting down and opens no session")
        return elsewhere(named, own, websocket.headers)

    async def _accept(self, websocket: WebSocket, subprotocol: str | None = None) -> Line:
        return await accept(websocket, subprotocol, max_bytes=self._max_bytes, stalled_s=self._stalled_s)

    async def _base(self, line: Line, session_id: str | None, headers: Headers) -> None:
        """A session of the socket's own, or the one that `?session_id=` names."""
        conversation = BaseConversation(line, self._rpc, self._mode, self._max_bytes)
        try:
            worker = await self._sessions.elsewhere(session_id) if session_id is not None else None
            if session_id is not None and worker is not None:
                await self._sessions.peers.tunnel(worker, session_id, line)
                return
            session = await self._find(session_id, headers)
        except EnvTorchError as error:
            line.send(error_reply(error).frame())
            line.close()
            await line.converse(conversation)
            return
        leaving = Once(lambda: self._leave(session, is_own=session_id is None))
        try:
            conversation.begin(session, leaving.start)
            await line.converse(conversation)
        finally:
            await leaving.start()

    async def _leave(self, session: Session, *, is_own: bool) -> None:
        if is_own:
            await self._sessions.release(session)
        else:
            await session.detach()

    async def _find(self, session_id: str | None, headers: Headers) -> Session:
        if session_id is None:
            return await self._sessions.open(held=True, wait_s=ARRIVAL_PATIENCE_S)
        session = self._sessions.get(session_id, headers)
        session.attach()
        return session


async def _deny(websocket: WebSocket, refusal: EnvTorchError) -> None:
    """Answer a handshake with an error; a server that cannot do that closes the socket."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(error_response(refusal))
    else:
        await websocket.close(TRY_AGAIN_LATER)


class Once:
    """Starts a piece of work at the first call, and returns that one task at every call."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
        return self._task
