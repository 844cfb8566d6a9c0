"""HTTP that reaches a worker for a session of another: passed on whole, and answered as if it had gone there.

It stands before everything else, the gate included: what is passed on meets the gate of the worker that
answers it. Only what workers ask each other, and show the secret for, goes past the gate, to the doors.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from envtorch.errors import EnvTorchError, SessionLost
from envtorch.server.app import HTTPEnvServer
from envtorch.server.doors.http_routes import SESSION_HEADER, error_response
from envtorch.server.doors.mcp_http import MCP_SESSION_HEADER
from envtorch.server.doors.mcp_rpc import RpcDoor
from envtorch.server.doors.ors_routes import ORS_PATHS, ORS_SESSION_HEADER
from envtorch.server.doors.websocket import SocketDoor
from envtorch.server.transport.connection import accept
from envtorch.server.workers.merged_metrics import gather
from envtorch.server.workers.peers import RPC_PATH, SECRET_HEADER, SOCKET_PATH, WorkerPeers

__all__ = ["Relay"]

ONE_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect", b"proxy-connection"}
)
"""Headers about a connection, not about the request."""
OWN = frozenset({b"date", b"server", b"transfer-encoding"})
"""Headers that this worker's own server adds to every response."""
PINNED = ("/web", "/ws/ui")
"""The web page keeps its visitors in memory, so the first worker has it."""
VISITOR = ("authorization", "cookie", "origin", "host")
"""Headers by which the first worker knows who opens a socket there."""


WITHOUT_A_SESSION = ("/reset", "/close", *ORS_PATHS)
"""What can be asked although the session that was named is lost."""


class ClientLeft(Exception):
    """Whoever asked does not wait for the answer."""


class Relay:
    """Around the application of one worker."""

    def __init__(self, app: ASGIApp, server: HTTPEnvServer, peers: WorkerPeers) -> None:
        self._app = app
        self._sessions = server.sessions
        self._max_bytes = server.max_message_bytes
        self._peers = peers
        self._rpc = RpcDoor(server.sessions)
        self._door = SocketDoor(
            server.sessions, self._rpc, server.mode, server.max_message_bytes, stalled_s=None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._is_neighbour(headers):
            await self._internal(scope, receive, send)
        elif scope["type"] == "websocket" and self._is_pinned_elsewhere(scope["path"]):
            await self._open_elsewhere(WebSocket(scope, receive, send), headers)
        elif scope["type"] == "websocket":
            await self._app(scope, receive, send)
        elif scope["path"].endswith("/metrics"):
            await gather(self._app, self._peers, scope, receive, send)
        else:
            await self._route(scope, headers, receive, send)

    def _is_neighbour(self, headers: Headers) -> bool:
        shown = headers.get(SECRET_HEADER)
        return shown is not None and hmac.compare_digest(shown.encode(), self._peers.secret.encode())

    async def _internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == SOCKET_PATH and scope["type"] == "websocket":
            await self._door.serve(WebSocket(scope, receive, send))
        elif scope["path"] == RPC_PATH and scope["type"] == "http":
            answer = await self._rpc.answer(await Request(scope, receive).body(), own=None)
            await Response(answer, media_type="application/json")(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _route(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        try:
            worker = await self._worker_for(scope["path"], headers)
            if worker is not None:
                await self._pass_on(worker, scope, receive, send)
                return
        except EnvTorchError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_pinned_elsewhere(self, path: str) -> bool:
        return self._peers.worker != 0 and any(
            path == pinned or path.startswith(pinned + "/") for pinned in PINNED
        )

    async def _open_elsewhere(self, websocket: WebSocket, headers: Headers) -> None:
        """A socket that belongs to the first worker; refused when that one refuses it."""
        shown = {name: headers[name] for name in VISITOR if name in headers}
        try:
            url = websocket.url
            target = f"{url.path}?{url.query}" if url.query else url.path
            await self._peers.first(target, shown, lambda: accept(websocket, max_bytes=self._max_bytes))
        except (EnvTorchError, OSError, TimeoutError):
            await websocket.close(1008)

    async def _worker_for(self, path: str, headers: Headers) -> int | None:
        """The other worker that must answer; None when this one may."""
        if self._is_pinned_elsewhere(path):
            return 0
        name = session_name(path, headers)
        if name is None:
            return None
        try:
            return await self._sessions.elsewhere(name)
        except SessionLost:
            if path.endswith(WITHOUT_A_SESSION):
                return None
            raise

    async def _pass_on(self, worker: int, scope: Scope, receive: Receive, send: Send) -> None:
        """There and back, as it comes. Who leaves is not waited for; the call that was made runs on."""
        arrived = asyncio.Event()
        body = _body(receive, arrived)
        passing = asyncio.get_running_loop().create_task(self._exchange(worker, scope, body, send))
        leaving = asyncio.get_running_loop().create_task(_left(receive, arrived))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                await passing
        finally:
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _exchange(self, worker: int, scope: Scope, body: AsyncIterator[bytes], send: Send) -> None:
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = [(name, value) for name, value in scope["headers"] if name not in ONE_HOP]
        method = scope["method"].encode()
        async with self._peers.request(worker, method, target, headers, body) as response:
            kept = [(n, v) for n, v in response.headers if n.lower() not in ONE_HOP | OWN]
            await send({"type": "http.response.start", "status": response.status, "headers": kept})
            async for chunk in response.aiter_stream():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def session_name(path: str, headers: Headers) -> str | None:
    """What a request calls its session, by header or cookie, if it names one."""
    if path.endswith("/mcp"):
        return headers.get(MCP_SESSION_HEADER) or headers.get(SESSION_HEADER)
    cookies: dict[str, Any] = cookie_parser(headers.get("cookie", ""))
    standard = headers.get(ORS_SESSION_HEADER) if path.endswith(ORS_PATHS) else None
    return standard or headers.get(SESSION_HEADER) or cookies.get(SESSION_HEADER)


async def _body(receive: Receive, arrived: asyncio.Event) -> AsyncIterator[bytes]:
    more = True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        more = message.get("more_body", False)
        if not more:
            arrived.set()
        if message.get("body"):
            yield message["body"]


async def _left(receive: Receive, arrived: asyncio.Event) -> None:
    """Wait until the client is gone: its request was read, and it says nothing more."""
    await arrived.wait()
    while (await receive())["type"] != "http.disconnect":
        pass
