"""`/mcp` for MCP's own clients: tools over streamable HTTP, in one session.

OpenEnv's JSON-RPC lives on the same path and is told apart by what it never does: it does not initialise, and
sends neither `Mcp-Session-Id` nor `MCP-Protocol-Version`. `Mcp-Session-Id` is the token of an EnvTorch
session, so a trainer that prepared a session over HTTP can hand it to an agent, and both act in the same
episode. Answers are plain JSON, one per request; a stream of the server's own messages is not offered, and
MCP lets it be refused.
"""

from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from envtorch.errors import EnvTorchError, SessionLost
from envtorch.protocol.jsonrpc import Code, RpcError, failure, success
from envtorch.protocol.mcp_message import (
    BATCH_REVISIONS,
    HANDSHAKE_REVISIONS,
    STATELESS_REVISION,
    InvalidMessage,
    McpMessage,
    McpMessageKind,
    read,
    take,
)
from envtorch.server.doors.agent_tools import AgentTools
from envtorch.server.doors.http_routes import SESSION_HEADER, error_response, require_json
from envtorch.server.doors.mcp_rpc import RpcDoor, rpc_response, status_of
from envtorch.server.doors.mcp_stateless import StatelessMcp
from envtorch.server.sessions.other_replicas import missing
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session

__all__ = ["MCP_SESSION_HEADER", "McpDoor"]

MCP_SESSION_HEADER = "Mcp-Session-Id"
MCP_VERSION_HEADER = "MCP-Protocol-Version"
ALLOWED = {"Allow": "POST, DELETE"}

MOST_IN_BATCH = 1000
"""How many messages a batch may have. The answer to `1` is fifty times as long, and none of them waits."""


class Initialized(NamedTuple):
    """What came of `initialize`."""

    answer: bytes
    session: Session | None = None
    """The session that it began; None where it could not."""
    status: int = 200
    """As HTTP has it."""


class McpDoor:
    """`/mcp`, by its HTTP methods."""

    def __init__(self, sessions: Sessions, rpc: RpcDoor, tools: AgentTools) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self._tools = tools
        self._stateless = StatelessMcp(sessions, tools)

    async def post(self, request: Request) -> Response:
        """One message, or a batch in the revisions that have them: MCP's own, else OpenEnv's dialect."""
        try:
            require_json(request)
        except EnvTorchError as error:
            return error_response(error)
        body = await request.body()
        session_id = request.headers.get(MCP_SESSION_HEADER)
        revision = request.headers.get(MCP_VERSION_HEADER)
        try:
            value = read(body)
        except InvalidMessage as invalid:
            value = invalid
        if session_id is None and revision is None and not _initialises(value):
            return await self._rpc.post(body)
        try:
            return await self._post(value, request, session_id, revision)
        except InvalidMessage as invalid:
            status = 200 if invalid.code is Code.INVALID_PARAMS else 400
            return rpc_response(failure(invalid.id, invalid), status)

    async def _post(
        self, value: Any, request: Request, session_id: str | None, revision: str | None
    ) -> Response:
        if isinstance(value, InvalidMessage):
            raise value
        if revision == STATELESS_REVISION:
            return await self._stateless.post(take(value), request)
        if revision is not None and revision not in HANDSHAKE_REVISIONS:
            return rpc_response(failure(None, _unsupported(revision)), 400)
        if isinstance(value, list):
            return await self._batch(value, self._held(session_id), request, revision)
        message = take(value)
        if message.kind is McpMessageKind.REQUEST and message.method == "initialize":
            return await self._initialize(message, request, session_id)
        session = self._held(session_id)
        if session is None:
            return self._unknown(session_id, request)
        if message.kind is not McpMessageKind.REQUEST:
            return Response(status_code=202)
        return rpc_response(await self.answer(message, session))

    async def _batch(
        self, values: list[Any], session: Session | None, request: Request, revision: str | None
    ) -> Response:
        """The answers to the requests of a batch, in its order; nothing where it has none."""
        if revision is not None and revision not in BATCH_REVISIONS:
            raise InvalidMessage(Code.INVALID_REQUEST, f"Invalid request: revision {revision} has no batches")
        if not values:
            raise InvalidMessage(Code.INVALID_REQUEST, "Invalid request: the batch is empty")
        if len(values) > MOST_IN_BATCH:
            why = f"Invalid request: the batch has {len(values)} messages, above {MOST_IN_BATCH}"
            raise InvalidMessage(Code.INVALID_REQUEST, why)
        if session is None:
            return self._unknown(request.headers.get(MCP_SESSION_HEADER), request)
        answers = [await self._in_batch(value, session) for value in values]
        told = [answer for answer in answers if answer is not None]
        return rpc_response(b"[%b]" % b",".join(told)) if told else Response(status_code=202)

    async def _in_batch(self, value: Any, session: Session) -> bytes | None:
        try:
            message = take(value)
        except InvalidMessage as invalid:
            return failure(invalid.id, invalid)
        if message.kind is not McpMessageKind.REQUEST:
            return None
        if message.method == "initialize":
            return failure(message.id, RpcError(Code.INVALID_REQUEST, "initialize cannot be part of a batch"))
        return await self.answer(message, session)

    async def delete(self, request: Request) -> Response:
        """End the client's session."""
        session = self._held(request.headers.get(MCP_SESSION_HEADER))
        if session is None:
            return self._unknown(request.headers.get(MCP_SESSION_HEADER), request)
        await self._sessions.release(session)
        return Response(status_code=204)

    async def other(self, request: Request) -> Response:
        """Any other method: no stream of the server's own messages is offered."""
        return Response(status_code=204 if request.method == "OPTIONS" else 405, headers=ALLOWED)

    def _held(self, session_id: str | None) -> Session | None:
        return self._sessions.by_token(session_id) if session_id else None

    def _unknown(self, session_id: str | None, request: Request) -> Response:
        """404 is how MCP tells a client to initialise anew, 400 that it has to name its session."""
        if session_id is None:
            told = f"{MCP_SESSION_HEADER} is missing: initialize first, and send what the answer has"
            return JSONResponse({"detail": told}, status_code=400)
        gone = SessionLost(f"there is no session of this {MCP_SESSION_HEADER}")
        return error_response(missing(session_id, self._sessions.replica, request.headers, gone))

    async def _initialize(self, message: McpMessage, request: Request, session_id: str | None) -> Response:
        """Begin a session; one that is repeated inside a session is answered and begins no other."""
        session = self._held(session_id)
        if session_id is not None and session is None:
            return self._unknown(session_id, request)
        existing = session.token if session is not None else request.headers.get(SESSION_HEADER)
        begun = await self.initialize(message, existing, request.headers)
        response = rpc_response(begun.answer, begun.status)
        if begun.session is not None:
            response.headers[MCP_SESSION_HEADER] = begun.session.token
        return response

    async def initialize(
        self, message: McpMessage, existing: str | None = None, headers: Headers | None = None
    ) -> Initialized:
        """Answer `initialize`. `headers` are the request's."""
        asked = message.params.get("protocolVersion")
        if not isinstance(asked, str):
            error = RpcError(Code.INVALID_PARAMS, "Invalid params: initialize needs 'protocolVersion'")
            return Initialized(failure(message.id, error))
        try:
            session, instructions = await self._session(existing, headers)
        except EnvTorchError as error:
            return Initialized(failure(message.id, RpcError.of(error)), status=status_of(error))
        told = {
            "protocolVersion": asked if asked in HANDSHAKE_REVISIONS else HANDSHAKE_REVISIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": self._tools.name, "version": version("envtorch")},
            **({"instructions": instructions} if instructions else {}),
        }
        return Initialized(success(message.id, msgspec.json.encode(told)), session)

    async def _session(self, existing: str | None, headers: Headers | None) -> tuple[Session, str | None]:
        """The session that a trainer prepared for the agent, as it is; else a new one, its episode begun."""
        if existing is not None:
            prepared = self._sessions.by_token(existing)
            if prepared is None:
                gone = SessionLost(f"the session of this {SESSION_HEADER} is gone")
                raise missing(existing, self._sessions.replica, headers, gone)
            return prepared, None
        session = await self._sessions.open(held=False)
        try:
            return session, await self._tools.begin(session)
        except BaseException:
            await self._sessions.release(session)
            raise

    async def answer(self, message: McpMessage, session: Session) -> bytes:
        """The answer to any request but `initialize`."""
        try:
            match message.method:
                case "ping":
                    result = b"{}"
                case "tools/list":
                    result = await self._tools.list(session)
                case "tools/call":
                    result = await self._tools.call(session, message.params)
                case method:
                    raise RpcError(Code.METHOD_NOT_FOUND, f"Method not found: {method}")
        except RpcError as error:
            return failure(message.id, error)
        except EnvTorchError as error:
            return failure(message.id, RpcError.of(error))
        return success(message.id, result)


def _initialises(value: Any) -> bool:
    """Whether an MCP client introduces itself, rightly or not.

    OpenEnv's dialect has no such method; without `params`, which every MCP client sends, it is answered as
    OpenEnv's server answers it: there is no method of that name.
    """
    return isinstance(value, dict) and value.get("method") == "initialize" and value.get("params") is not None


def _unsupported(revision: str) -> RpcError:
    supported = [*HANDSHAKE_REVISIONS, STATELESS_REVISION]
    return RpcError(
        Code.UNSUPPORTED_PROTOCOL_VERSION,
        "Unsupported protocol version",
        {"supported": supported, "requested": revision[:100]},
    )
