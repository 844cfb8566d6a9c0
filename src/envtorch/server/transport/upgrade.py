"""WebSocket handshakes: what becomes of a connection that asks to be upgraded.

An application that asks for the connection itself, by the extension in its scope, is given it on picows. For
every other application the connection becomes uvicorn's own WebSocket, at its first message.
"""

import asyncio
import binascii
import logging
import re
import socket
from typing import Any
from urllib.parse import unquote

from starlette.websockets import WebSocket
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected, get_local_addr, get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from envtorch.server.transport.connection import EXTENSION
from envtorch.server.transport.picows_transport import FastLine

__all__ = ["FastProtocol"]

logger = logging.getLogger("uvicorn.error")

TOKENS = re.compile(rb"[\w!#$%&'*+.^`|~-]+(?:[ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
KEY_BYTES = 16


class Accepted(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, for an application that runs already."""

    async def run_asgi(self) -> None:
        pass


class FastProtocol(asyncio.Protocol):
    """A connection whose handshake is not answered yet. uvicorn makes it, and gives it the request whole."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._made_of = (config, server_state, app_state)
        self._config = config
        self._connections: set[Any] = server_state.connections
        self._tasks = server_state.tasks
        self._request = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_connect_told = self._is_taken = self._is_lost = False
        self._standard: WebSocketsSansIOProtocol | None = None

    # What uvicorn and the transport tell.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._standard is not None:
            self._standard.data_received(data)
            return
        self._request = data
        first, *lines = data[:-4].split(b"\r\n")
        self._headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        if not _is_usual(first, self._headers):
            self._become(WebSocketsSansIOProtocol)
            return
        self._transport.pause_reading()  # until it is known who reads
        task = asyncio.get_running_loop().create_task(self._run(first.split(b" ")[1]))
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._connections.discard(self)
        if self._standard is not None:
            self._standard.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._standard is not None:
            self._standard.pause_writing()

    def resume_writing(self) -> None:
        if self._standard is not None:
            self._standard.resume_writing()

    def shutdown(self) -> None:
        """uvicorn stops."""
        self._transport.close()

    # What the application asks for.

    async def _run(self, url: bytes) -> None:
        try:
            await self._config.loaded_app(self._scope(url), self._receive, self._send)
        except ClientDisconnected:
            pass
        except BaseException:
            logger.exception("Exception in ASGI application\n")
            if not self._is_taken:
                self._become(Accepted).send_500_response()
        else:
            if not self._is_taken and self._standard is None:
                logger.error("ASGI callable returned without completing handshake.")
                self._become(Accepted).send_500_response()
        if not self._is_taken and (self._standard is None or self._standard.close_timer is None):
            self._transport.close()

    def _scope(self, url: bytes) -> dict[str, Any]:
        config, _, app_state = self._made_of
        raw_path, _, query = url.partition(b"?")
        offered = [value for name, value in self._headers if name == b"sec-websocket-protocol"]
        extensions: dict[str, Any] = {"websocket.http.response": {}}
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            extensions[EXTENSION] = {"take": self._take}
        return {
            "type": "websocket",
            "asgi": {"version": config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if self._transport.get_extra_info("sslcontext") else "ws",
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "root_path": config.root_path,
            "path": config.root_path + unquote(raw_path.decode("ascii")),
            "raw_path": config.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": self._headers,
            "subprotocols": [name.strip().decode() for names in offered for name in names.split(b",")],
            "state": app_state.copy(),
            "extensions": extensions,
        }

    async def _take(self, websocket: WebSocket, subprotocol: str | None, max_bytes: int) -> FastLine | None:
        """Give the connection to picows; None when it is gone, or belongs to uvicorn already."""
        if self._is_lost or self._standard is not None or self._transport.is_closing():
            return None
        self._is_taken = True
        self._connections.discard(self)
        line = FastLine(self._connections, subprotocol, max_bytes)
        line.open(
            self._transport,
            dict(self._headers)[b"sec-websocket-key"],
            self._config.ws_ping_interval if self._answers_pings else None,
            self._config.ws_ping_timeout,
        )
        return line

    @property
    def _answers_pings(self) -> bool:
        """Whether the client answers pings in time; one that may not says so."""
        return (b"envtorch-pings", b"unanswered") not in self._headers

    async def _receive(self) -> Any:
        if not self._is_connect_told:
            self._is_connect_told = True
            return {"type": "websocket.connect"}
        return await self._become(Accepted).receive()

    async def _send(self, message: Any) -> None:
        await self._become(Accepted).send(message)

    def _become(self, kind: type[WebSocketsSansIOProtocol]) -> WebSocketsSansIOProtocol:
        """uvicorn's WebSocket on this connection."""
        if self._standard is None:
            self._connections.discard(self)
            standard = self._standard = kind(*self._made_of)
            if not self._answers_pings:
                standard.ping_interval = None
            standard.connection_made(self._transport)
            standard.data_received(self._request)
            if kind is Accepted:
                standard.queue.get_nowait()  # `connect`, which the application has been told
                self._transport.resume_reading()
            if self._is_lost:
                standard.connection_lost(None)
        return self._standard


def _is_usual(first: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a handshake is as clients send it. Every other is answered by uvicorn's WebSocket."""
    found = dict(headers)
    key, offered = found.get(b"sec-websocket-key", b""), found.get(b"sec-websocket-protocol")
    try:
        is_key = len(binascii.a2b_base64(key, strict_mode=True)) == KEY_BYTES
    except binascii.Error:
        is_key = False
    return (
        is_key
        and len(found) == len(headers)
        and first.startswith(b"GET ")
        and first.endswith(b" HTTP/1.1")
        and found.get(b"sec-websocket-version") == b"13"
        and found.get(b"upgrade", b"").lower() == b"websocket"
        and (offered is None or TOKENS.fullmatch(offered) is not None)
    )
