"""`WS /ws`: on the base wire, one socket, one session, one reply for each frame, in order."""

import logging

from starlette.websockets import WebSocket, WebSocketDisconnect

from envtorch.errors import EnvTorchError, InvalidJSON, NotAllowed
from envtorch.protocol.extended import FORMATS
from envtorch.protocol.messages import Close, Mcp, Request, Step, decode
from envtorch.protocol.wire import Reply, error_reply, mcp_reply
from envtorch.server.extended import ExtendedSocket
from envtorch.server.frames import receive_frame, send_frame
from envtorch.server.mcp import RpcDoor
from envtorch.server.session import Session
from envtorch.server.sessions import Sessions
from envtorch.settings import ServerMode

__all__ = ["SocketDoor"]

logger = logging.getLogger(__name__)

ARRIVAL_PATIENCE_S = 0.25
"""How long a new socket waits for a slot: the one before it may just be closing."""


class SocketDoor:
    """Drives sessions over OpenEnv's wire."""

    def __init__(self, sessions: Sessions, rpc: RpcDoor, mode: ServerMode) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self._mode = mode

    async def endpoint(self, websocket: WebSocket) -> None:
        """Serve one socket: on the extended wire if the client offers it, else on OpenEnv's."""
        for offered in websocket.scope.get("subprotocols", ()):
            format = FORMATS.get(offered)
            if format is not None:
                await websocket.accept(subprotocol=offered)
                await ExtendedSocket(websocket, format, self._sessions, self._rpc, self._mode).serve()
                return
        await self._base(websocket)

    async def _base(self, websocket: WebSocket) -> None:
        """A session of the socket's own, or the one that `?session_id=` names."""
        await websocket.accept()
        session_id = websocket.query_params.get("session_id")
        try:
            if session_id is not None:
                session = self._sessions.get(session_id)
                session.attach()
            else:
                session = await self._sessions.open(held=True, wait_s=ARRIVAL_PATIENCE_S)
        except EnvTorchError as error:
            await send_frame(websocket, error_reply(error).frame())
            await websocket.close()
            return
        try:
            await self._converse(websocket, session)
        except WebSocketDisconnect:
            pass
        finally:
            if session_id is not None:
                await session.detach()
            else:
                await self._sessions.release(session)

    async def _converse(self, websocket: WebSocket, session: Session) -> None:
        while True:
            frame = await receive_frame(websocket)
            try:
                request = _read(frame)
                if isinstance(request, Close):
                    await websocket.close()
                    return
                reply = await self._reply(request, session)
            except EnvTorchError as error:
                reply = error_reply(error)
            await send_frame(websocket, reply.frame())

    async def _reply(self, request: Request, session: Session) -> Reply:
        if isinstance(request, Mcp):
            return mcp_reply(await self._rpc.answer(bytes(request.data), own=session))
        assert not isinstance(request, Close)
        if self._mode is ServerMode.PRODUCTION:
            raise NotAllowed(
                f"{type(request).__name__.lower()} is simulation control, and this server runs in "
                "production mode: use the environment's tools"
            )
        flow = session.host.reply(request, strict=False)
        return await (session.step(flow) if isinstance(request, Step) else session.run(flow))


def _read(frame: str | bytes) -> Request:
    if isinstance(frame, bytes):
        raise InvalidJSON("Invalid JSON: expected a text frame, got a binary one")
    return decode(frame)
