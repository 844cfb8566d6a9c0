"""`/harness`: a production server's conversation with a harness, event by event."""

import asyncio
from functools import partial

from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from envtorch.compat.harness.environment import HarnessEnvironment
from envtorch.compat.harness.turns import (
    HarnessClientMessage,
    HarnessError,
    HarnessEvent,
    HarnessEventType,
    HarnessProtocolError,
)
from envtorch.errors import EnvTorchError, InvalidJSON, Unsupported
from envtorch.protocol.calls import Call, Perform
from envtorch.protocol.messages import read_json, write_json
from envtorch.protocol.wire import error_reply
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.server.transport.asgi_frames import receive_frame

__all__ = ["HarnessDoor"]


class HarnessDoor:
    """One session per socket. What the harness does is sent as it happens."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def endpoint(self, websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            session = await self._sessions.open(held=True)
        except EnvTorchError as error:
            await websocket.send_text(error_reply(error).frame().decode())
            await websocket.close()
            return
        try:
            await self._converse(websocket, session)
            await websocket.close()
        except WebSocketDisconnect:
            pass
        except EnvTorchError as error:
            await websocket.send_text(error_reply(error).frame().decode())
            await websocket.close()
        finally:
            await self._sessions.release(session)

    async def _converse(self, websocket: WebSocket, session: Session) -> None:
        environment = _environment(session)
        await session.call(Call.reset())
        started = {"session_id": session.id, "harness": environment.adapter.config.name}
        await websocket.send_text(write_json({"type": "session_started", "data": started}).decode())
        while True:
            message = await self._next_message(websocket)
            turn = _Turn(environment, websocket)
            await session.call(Perform("perform", function=partial(turn.run, message)))
            if turn.failure is not None:
                await websocket.send_text(HarnessEvent.fatal(turn.failure).model_dump_json())
                return

    async def _next_message(self, websocket: WebSocket) -> str:
        """What the client says next; frames that say nothing are answered, and passed over."""
        while True:
            frame = await receive_frame(websocket)
            try:
                return HarnessClientMessage.model_validate(read_json(frame)).content
            except InvalidJSON as error:
                told = {"message": error.message, "code": "INVALID_JSON"}
            except ValidationError as error:
                told = {"message": f"Invalid message: {error}", "code": "VALIDATION_ERROR"}
            await websocket.send_text(HarnessProtocolError(data=told).model_dump_json())


class _Turn:
    """One turn, sent on as it happens; `failure` is why the conversation cannot go on."""

    def __init__(self, environment: HarnessEnvironment, websocket: WebSocket) -> None:
        self._environment = environment
        self._websocket = websocket
        self.failure: str | None = None

    async def run(self, message: str, environment: HarnessEnvironment) -> None:
        adapter = self._environment.adapter
        limit = adapter.config.session_timeout_s
        last = None
        try:
            if not await adapter.is_alive():
                self.failure = "harness process is not running"
                return
            async with asyncio.timeout(limit):
                async for event in adapter.send_message_streaming(message):
                    last = event.type
                    await self._websocket.send_text(event.model_dump_json())
        except TimeoutError:
            self.failure = f"harness turn exceeded {limit} seconds"
        except HarnessError as error:
            self.failure = str(error)
        else:
            if last is not HarnessEventType.TURN_COMPLETE:
                self.failure = "harness event stream ended without a TURN_COMPLETE event"


def _environment(session: Session) -> HarnessEnvironment:
    host = session.runner.host
    if host is not None and isinstance(host.environment, HarnessEnvironment):
        return host.environment
    raise Unsupported(f"{session.runner.name} is no conversation with a harness in this process")
