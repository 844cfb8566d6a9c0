"""`POST /mcp` and `WS /mcp`: an environment's tools over JSON-RPC, in OpenEnv's dialect."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from envtorch.errors import EnvTorchError, SessionLost
from envtorch.protocol.calls import Call
from envtorch.protocol.extended import MAX_TOKEN_LENGTH
from envtorch.protocol.jsonrpc import Code, JsonRpcRequest, RequestId, RpcError, decode, failure, success
from envtorch.protocol.ledger import CallOutcome
from envtorch.server.runners.runner import Runner
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.server.transport.asgi_frames import receive_frame, send_frame

__all__ = ["OwnCall", "RpcDoor", "rpc_response", "status_of"]

Handler = Callable[[dict[str, Any], Session | None], Awaitable[bytes]]


class OwnCall(NamedTuple):
    """A request for the tools of a socket's own session, as a call."""

    call: Call
    id: RequestId
    is_list: bool

    def response(self, outcome: CallOutcome) -> bytes:
        """The JSON-RPC response, given what came of the call."""
        if outcome.error is not None:
            return failure(self.id, RpcError.of(outcome.error))
        return success(self.id, b'{"tools":%b}' % outcome.result if self.is_list else outcome.result)


class RpcAnswer(NamedTuple):
    """A JSON-RPC response, and the status that HTTP may give it."""

    body: bytes
    status: int = 200


def status_of(error: EnvTorchError) -> int:
    """The status of a response that carries an error of ours: 503 where a proxy may ask the next server, as
    this one is full, is shutting down or cannot build the environment; else 200, as JSON-RPC keeps its errors
    in the body."""
    return 503 if error.http_status == 503 else 200


def rpc_response(body: bytes, status: int = 200) -> Response:
    """A JSON-RPC response over HTTP."""
    headers = {"Retry-After": "1"} if status == 503 else None
    return Response(body, status, headers, media_type="application/json")


class RpcDoor:
    """Answers JSON-RPC requests, whichever door they came through.

    `own` is the session of the socket a request came through; over HTTP there is none, and the
    request names its session, or gets one for the length of the call.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._methods: dict[str, Handler] = {
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "openenv/session/create": self._create_session,
            "openenv/session/close": self._close_session,
        }

    async def post(self, body: bytes) -> Response:
        """`POST /mcp`: 200, as in OpenEnv; but a server that has a name is one of several, and answers as
        `status_of` says."""
        answered = await self._answered(body, own=None)
        return rpc_response(answered.body, 200 if self._sessions.replica is None else answered.status)

    async def endpoint(self, websocket: WebSocket) -> None:
        """`WS /mcp`: a session per socket, bare JSON-RPC frames."""
        await websocket.accept()
        try:
            session = await self._sessions.open(held=True)
        except EnvTorchError as error:
            await websocket.send_text(failure(None, RpcError.of(error)).decode())
            await websocket.close()
            return
        try:
            while True:
                frame = await receive_frame(websocket)
                answer = await self.answer(frame, own=session, parse_error="Parse error: {}")
                await send_frame(websocket, answer)
        except WebSocketDisconnect:
            pass
        finally:
            await self._sessions.release(session)

    async def answer(
        self, text: str | bytes, *, own: Session | None, parse_error: str = "Parse error"
    ) -> bytes:
        """The response to one request, whatever happens."""
        return (await self._answered(text, own=own, parse_error=parse_error)).body

    async def _answered(
        self, text: str | bytes, *, own: Session | None, parse_error: str = "Parse error"
    ) -> RpcAnswer:
        id: RequestId = None
        try:
            request = decode(text, parse_error=parse_error)
            id = request.id
            _require_short(request.params.get("session_id"))
            worker = await self._elsewhere(request, own)
            if worker is not None:
                return RpcAnswer(await self._sessions.peers.rpc(worker, text))
            return RpcAnswer(success(id, await self._handler(request)(request.params, own)))
        except RpcError as error:
            return RpcAnswer(failure(id, error))
        except EnvTorchError as error:
            return RpcAnswer(failure(id, RpcError.of(error)), status_of(error))

    def own_call(self, text: bytes, own: Session) -> OwnCall | bytes:
        """A request for the tools of a socket's own session, as a call; any other unchanged, for `answer`."""
        try:
            request = decode(text)
            if request.method == "tools/list" and own.runner.has_tools:
                return OwnCall(Call("list_tools"), request.id, is_list=True)
            if request.method == "tools/call" and own.runner.has_tools:
                return OwnCall(_tool_call(request.params), request.id, is_list=False)
        except RpcError:
            pass  # `answer` says what is wrong with it
        return text

    def _handler(self, request: JsonRpcRequest) -> Handler:
        handler = self._methods.get(request.method)
        if handler is None:
            raise RpcError(Code.METHOD_NOT_FOUND, f"Method not found: {request.method}")
        return handler

    # The methods.

    async def _list_tools(self, params: dict[str, Any], own: Session | None) -> bytes:
        named = params.get("session_id")
        session = own or (self._find(str(named)) if named is not None else None)
        if session is None:  # any environment of this server has the same tools
            _require_tools(await self._sessions.spare())
            return b'{"tools":%b}' % await self._sessions.ask(Call("list_tools"))
        _require_tools(session.runner)
        return b'{"tools":%b}' % await session.call(Call("list_tools"))

    async def _call_tool(self, params: dict[str, Any], own: Session | None) -> bytes:
        call = _tool_call(params)
        async with self._session(params, own) as session:
            _require_tools(session.runner)
            result: bytes = await session.call(call)
            return result

    async def _create_session(self, params: dict[str, Any], own: Session | None) -> bytes:
        session = own or await self._sessions.open(held=False)
        session.is_open_by_id = True
        return msgspec.json.encode({"session_id": session.id})

    async def _close_session(self, params: dict[str, Any], own: Session | None) -> bytes:
        session_id = params.get("session_id")
        if not isinstance(session_id, str) or not session_id:
            raise RpcError(Code.INVALID_PARAMS, "Invalid params - 'session_id' is required")
        if own is not None and own.id == session_id:
            raise RpcError(
                Code.INVALID_REQUEST, "Cannot close active WebSocket-managed session via MCP method"
            )
        session = self._find(session_id)
        if session.socket_attached:
            session.close_when_detached = True
            return msgspec.json.encode({"session_id": session_id, "closed": False, "closing": True})
        await self._sessions.release(session)
        return msgspec.json.encode({"session_id": session_id, "closed": True})

    # Which session a request means.

    async def _elsewhere(self, request: JsonRpcRequest, own: Session | None) -> int | None:
        """The worker that must answer: the one that holds the session which the request is about."""
        named = request.params.get("session_id")
        if not isinstance(named, str) or request.method not in self._methods:
            return None
        if own is not None and request.method != "openenv/session/close":
            return None  # a socket's own session is what its requests are about
        return await self._sessions.elsewhere(named)

    def _find(self, session_id: str) -> Session:
        try:
            return self._sessions.get(session_id)
        except SessionLost as error:
            raise RpcError(Code.INVALID_PARAMS, error.message) from None

    @asynccontextmanager
    async def _session(self, params: dict[str, Any], own: Session | None) -> AsyncIterator[Session]:
        named = params.get("session_id")
        if own is not None:
            yield own
        elif named is not None:
            yield self._find(str(named))
        else:
            session = await self._sessions.open(held=True)
            try:
                yield session
            finally:
                await self._sessions.release(session)


def _require_short(session_id: Any) -> None:
    if isinstance(session_id, str) and len(session_id) > MAX_TOKEN_LENGTH:
        raise RpcError(
            Code.INVALID_PARAMS, f"Invalid params - 'session_id' has more than {MAX_TOKEN_LENGTH} characters"
        )


def _tool_call(params: dict[str, Any]) -> Call:
    name = params.get("name")
    if not isinstance(name, str) or not name:
        raise RpcError(Code.INVALID_PARAMS, "Missing 'name' in params")
    arguments = params.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise RpcError(Code.INVALID_PARAMS, "'arguments' must be an object")
    return Call.with_arguments("call_tool", name, arguments)


def _require_tools(runner: Runner) -> None:
    if not runner.has_tools:
        raise RpcError(Code.INTERNAL_ERROR, "Environment does not support MCP")
