"""`/mcp` for MCP's own clients: `initialize`, then tools, over streamable HTTP, in one session.

OpenEnv's JSON-RPC lives on the same path and is told apart by what it never does: it does not
initialise, and sends no `Mcp-Session-Id`. That id is the token of an EnvTorch session, so a trainer who
prepared one over HTTP hands it to an agent, and both act in the same episode. Answers are plain JSON, one per
request; a stream of the server's own messages is not offered, and MCP lets it be refused.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from envtorch.errors import EnvTorchError, InvalidJSON, SessionLost
from envtorch.protocol.jsonrpc import Code, RpcError, failure, success
from envtorch.protocol.messages import read_json
from envtorch.server.doors.agent_tools import AgentTools
from envtorch.server.doors.http_routes import SESSION_HEADER, error_response, require_json
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session

__all__ = ["MCP_SESSION_HEADER", "McpDoor"]

MCP_SESSION_HEADER = "Mcp-Session-Id"

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions of MCP spoken here, newest first."""


class McpDoor:
    """`POST` and `DELETE /mcp`."""

    def __init__(self, sessions: Sessions, rpc: RpcDoor, tools: AgentTools) -> None:
        self._sessions = sessions
        self._rpc = rpc
        self._tools = tools

    async def post(self, request: Request) -> Response:
        """One message: MCP's where a session is asked for or named, else OpenEnv's."""
        try:
            require_json(request)
        except EnvTorchError as error:
            return error_response(error)
        body = await request.body()
        session_id = request.headers.get(MCP_SESSION_HEADER)
        message = _object_in(body)
        if _initialises(message):
            return await self._initialize(message, request.headers.get(SESSION_HEADER))
        if session_id is None:
            return Response(await self._rpc.answer(body, own=None), media_type="application/json")
        session = self._sessions.by_token(session_id)
        if session is None:  # 404 is how MCP tells a client to initialise anew
            return JSONResponse({"detail": f"Unknown {MCP_SESSION_HEADER}: {session_id}"}, status_code=404)
        if message.get("id") is None:  # a notification, or an answer to a question we never ask
            return Response(status_code=202)
        return Response(await self.answer(message, session), media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """The client is done with its session."""
        session = self._sessions.by_token(request.headers.get(MCP_SESSION_HEADER, ""))
        if session is None:
            return Response(status_code=404)
        await self._sessions.release(session)
        return Response(status_code=204)

    async def _initialize(self, message: Mapping[str, Any], existing: str | None) -> Response:
        answer, session = await self.initialize(message, existing)
        headers = {MCP_SESSION_HEADER: session.token} if session is not None else None
        return Response(answer, media_type="application/json", headers=headers)

    async def initialize(
        self, message: Mapping[str, Any], existing: str | None = None
    ) -> tuple[bytes, Session | None]:
        """The answer to `initialize`, and the session it began; None where it could not."""
        id = _id_of(message)
        try:
            session, instructions = await self._session(existing)
        except EnvTorchError as error:
            return failure(id, RpcError.of(error)), None
        asked = (message.get("params") or {}).get("protocolVersion")
        told = {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": self._tools.name, "version": version("envtorch")},
            **({"instructions": instructions} if instructions else {}),
        }
        return success(id, msgspec.json.encode(told)), session

    async def _session(self, existing: str | None) -> tuple[Session, str | None]:
        """The session that a trainer prepared for the agent, as it is; else a new one, its episode begun."""
        if existing is not None:
            prepared = self._sessions.by_token(existing)
            if prepared is None:
                raise SessionLost(f"the session of this {SESSION_HEADER} is gone")
            return prepared, None
        session = await self._sessions.open(held=False)
        try:
            return session, await self._tools.begin(session)
        except BaseException:
            await self._sessions.release(session)
            raise

    async def answer(self, message: Mapping[str, Any], session: Session) -> bytes:
        """The answer to any other request."""
        id = _id_of(message)
        params = message.get("params") or {}
        try:
            match message.get("method"):
                case "ping":
                    result = b"{}"
                case "tools/list":
                    result = await self._tools.list(session)
                case "tools/call":
                    result = await self._tools.call(session, params)
                case method:
                    raise RpcError(Code.METHOD_NOT_FOUND, f"Method not found: {method}")
        except RpcError as error:
            return failure(id, error)
        except EnvTorchError as error:
            return failure(id, RpcError.of(error))
        return success(id, result)


def _initialises(message: Mapping[str, Any]) -> bool:
    """Whether an MCP client introduces itself; it always says which revision it speaks."""
    params = message.get("params")
    return (
        message.get("method") == "initialize"
        and message.get("id") is not None
        and isinstance(params, dict)
        and "protocolVersion" in params
    )


def _object_in(body: bytes) -> dict[str, Any]:
    """The message, or an empty one where there is none: OpenEnv's door then says what is wrong."""
    try:
        message = read_json(body)
    except InvalidJSON:
        return {}
    return message if isinstance(message, dict) else {}


def _id_of(message: Mapping[str, Any]) -> str | int | None:
    id = message.get("id")
    return id if isinstance(id, str | int) else None
