"""`WS /ws`: one socket, one session, one reply for each frame, in order."""

import logging

from starlette.websockets import WebSocket, WebSocketDisconnect

from envtorch.errors import EnvTorchError, InvalidJSON, NotAllowed
from envtorch.protocol.messages import Close, Mcp, Request, Step, decode
from envtorch.protocol.wire import Reply, error_reply, mcp_reply
from envtorch.server.mcp import RpcDoor
from envtorch.server.session import Session
from envtorch.server.sessions import Sessions
from envtorch.settings import ServerMode

__all__ = ["SocketDoor", "receive_frame"]

logger = logging.getLogger(__name__)


class SocketDoor:
    """Drives sessions over OpenEnv's wire."""

    def __init__(self, sessions: Sessions, rpc: RpcDoor, mode: ServerMode) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self._mode = mode

    async def endpoint(self, websocket: WebSocket) -> None:
        """Serve one socket, on a session of its own or on the one that `?session_id=` names."""
        await websocket.accept()
        session_id = websocket.query_params.get("session_id")
        try:
            if session_id is not None:
                session = self._sessions.get(session_id)
                session.attach()
            else:
                session = await self._sessions.open(held=True)
        except EnvTorchError as error:
            await _send(websocket, error_reply(error))
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
            await _send(websocket, reply)

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


async def receive_frame(websocket: WebSocket) -> str | bytes:
    """The next frame, text or binary. Raises `WebSocketDisconnect` when there is none."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text: str | None = message.get("text")
    return text if text is not None else bytes(message["bytes"])


async def _send(websocket: WebSocket, reply: Reply) -> None:
    await websocket.send_text(reply.frame().decode())
