"""MCP's revision 2026-07-28, in which every request stands for itself.

There is no `initialize` and no session id, but an environment keeps an episode. Which one a request means is
told as on the other HTTP routes: by the `EnvTorch-Session` header or cookie, and without one by the one
session of a server with room for one. A client that negotiates the revision is offered those that have
sessions, unless it sends such a header: `server/discover` then lists this one too.
"""

from collections import OrderedDict
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from envtorch.errors import EnvTorchError, SessionLost
from envtorch.protocol.jsonrpc import Code, RpcError, failure, success
from envtorch.protocol.mcp_message import HANDSHAKE_REVISIONS, STATELESS_REVISION, McpMessage, McpMessageKind
from envtorch.server.doors.agent_tools import AgentTools
from envtorch.server.doors.http_routes import SESSION_HEADER, SessionRequired
from envtorch.server.doors.mcp_rpc import rpc_response, status_of
from envtorch.server.sessions.other_replicas import missing
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.server.sessions.slots import Names

__all__ = ["StatelessMcp"]

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"
STATUS = {
    Code.PARSE_ERROR: 400,
    Code.INVALID_REQUEST: 400,
    Code.INVALID_PARAMS: 400,
    Code.HEADER_MISMATCH: 400,
    Code.UNSUPPORTED_PROTOCOL_VERSION: 400,
    Code.METHOD_NOT_FOUND: 404,
}
"""The HTTP status that the revision wants for an error."""

MOST_ISSUED = 1024
"""How many cookies are remembered for which no session was opened."""


class StatelessMcp:
    """Answers requests of the revision that has no sessions of its own."""

    def __init__(self, sessions: Sessions, tools: AgentTools) -> None:
        self._sessions = sessions
        self._tools = tools
        self._issued: OrderedDict[str, None] = OrderedDict()
        """Tokens that were given to clients as cookies, and have no session yet."""

    async def post(self, message: McpMessage, request: Request) -> Response:
        """The response to one message. A client that keeps cookies is given one for its session."""
        if message.kind is not McpMessageKind.REQUEST:
            return Response(status_code=202)
        token = request.headers.get(SESSION_HEADER) or request.cookies.get(SESSION_HEADER)
        status = 200
        try:
            _check(message, request)
            answer = success(message.id, await self._result(message, token, request))
        except RpcError as error:
            answer, status = failure(message.id, error), STATUS.get(error.code, 200)
        except EnvTorchError as error:
            answer, status = failure(message.id, RpcError.of(error)), status_of(error)
        response = rpc_response(answer, status)
        if not (self._sessions.serves_anonymous or self._is_known(token)):
            response.set_cookie(SESSION_HEADER, self._issue(), httponly=True, samesite="strict")
        return response

    def _is_known(self, token: str | None) -> bool:
        return token is not None and (token in self._issued or self._sessions.by_token(token) is not None)

    def _issue(self) -> str:
        token = Names.new(replica=self._sessions.replica).token
        self._issued[token] = None
        if len(self._issued) > MOST_ISSUED:
            self._issued.popitem(last=False)
        return token

    async def _result(self, message: McpMessage, token: str | None, request: Request) -> bytes:
        match message.method:
            case "server/discover":
                return self._discovered(knows_its_session=token is not None)
            case "tools/list":
                tools = await self._list(token)
                return b'{"resultType":"complete","ttlMs":0,"cacheScope":"private",' + tools[1:]
            case "tools/call":
                session = await self._session(token, request)
                return b'{"resultType":"complete",' + (await self._tools.call(session, message.params))[1:]
            case method:
                raise RpcError(Code.METHOD_NOT_FOUND, f"Method not found: {method}")

    async def _list(self, token: str | None) -> bytes:
        session = self._sessions.by_token(token) if token is not None else None
        return await (
            self._tools.list(session) if session is not None else self._tools.list_any(self._sessions)
        )

    async def _session(self, token: str | None, request: Request) -> Session:
        """The session of a request; one that was given a cookie has its session opened by its first call."""
        if token is None:
            if self._sessions.serves_anonymous:
                return await self._sessions.anonymous()
            raise SessionRequired(
                f"an environment keeps state between calls, and {STATELESS_REVISION} has no sessions: "
                f"send the {SESSION_HEADER} header that POST /reset answers with, keep the cookie that this "
                f"answer sets, or use revision {HANDSHAKE_REVISIONS[0]}"
            )
        session = self._sessions.by_token(token)
        return session if session is not None else await self._open(token, request)

    async def _open(self, token: str, request: Request) -> Session:
        if token not in self._issued:
            gone = SessionLost(f"the session of this {SESSION_HEADER} is gone; POST /reset opens one")
            raise missing(token, self._sessions.replica, request.headers, gone)
        del self._issued[token]
        session = await self._sessions.open(held=False, token=token)
        try:
            await self._tools.begin(session)
        except BaseException:
            await self._sessions.release(session)
            raise
        return session

    def _discovered(self, *, knows_its_session: bool) -> bytes:
        offered = [STATELESS_REVISION] if knows_its_session or self._sessions.serves_anonymous else []
        told: dict[str, Any] = {
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "supportedVersions": [*offered, *HANDSHAKE_REVISIONS],
            "capabilities": {"tools": {"listChanged": False}},
            "_meta": {SERVER_KEY: {"name": self._tools.name, "version": version("envtorch")}},
        }
        return msgspec.json.encode(told)


def _check(message: McpMessage, request: Request) -> None:
    """Check what every request of the revision carries. Raises `RpcError`."""
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in message.meta]
    if missing:
        raise RpcError(Code.INVALID_PARAMS, f"params._meta is missing {', '.join(missing)}")
    named = message.params.get("name") if message.method == "tools/call" else None
    for header, value in (
        ("MCP-Protocol-Version", message.meta[VERSION_KEY]),
        ("Mcp-Method", message.method),
        ("Mcp-Name", named),
    ):
        if value is not None and request.headers.get(header) != value:
            raise RpcError(Code.HEADER_MISMATCH, f"the {header} header does not match the request")
