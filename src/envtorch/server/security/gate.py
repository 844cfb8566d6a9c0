"""What every request passes before anything else: token, host, origin and size.

It is a plain ASGI middleware around the whole application, so that routes added later are behind it too.
"""

import logging
from collections.abc import Collection
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envtorch.errors import MessageTooLarge
from envtorch.server.security.hosts import ANY, AllowedHosts, AllowedOrigins
from envtorch.server.security.keys import Keys
from envtorch.server.security.login import Login
from envtorch.server.telemetry.tracing import CARRIER
from envtorch.settings import MAX_MESSAGE_BYTES

__all__ = ["AccessGate", "is_worth_logging"]

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health", "/ready", "/live")
"""What probes ask for: open to every caller, under any host name."""

EXPOSED_HEADERS = ("EnvTorch-Session", "Mcp-Session-Id", "MCP-Protocol-Version")
"""Headers that scripts of allowed origins may read."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let through."""

    status: int
    detail: str
    code: str


UNAUTHORIZED = Refusal(401, "this server requires a token: send 'Authorization: Bearer ...'", "UNAUTHORIZED")
WRONG_HOST = Refusal(
    403,
    "this host name is not one of the server's: add it to ENVTORCH_HOSTS, or set a token",
    "NOT_ALLOWED",
)
WRONG_ORIGIN = Refusal(403, "this origin may not use this server: add it to ENVTORCH_ORIGINS", "NOT_ALLOWED")


_is_refused: ContextVar[bool] = ContextVar("is_refused", default=False)
"""Whether the gate answered the WebSocket handshake of the present task, in place of the application."""


def is_worth_logging(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: it takes a refused handshake for a fault of the application."""
    return not (_is_refused.get() and record.levelno >= logging.ERROR and record.exc_info is None)


class BodyTooLarge(Exception):
    """A body grew beyond the limit while it was read."""


class AccessGate:
    """Refuses what may not enter, before any environment is built."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys | None = None,
        has_page: bool = False,
        allowed_origins: Collection[str] = (),
        hosts: AllowedHosts | None = None,
        max_body_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._app = app
        self._keys = keys
        self._login = Login(keys) if keys is not None and has_page else None
        self._origins = AllowedOrigins(allowed_origins)
        self._hosts = hosts
        self._max_body_bytes = max_body_bytes
        self._cross_origin = CORSMiddleware(
            self._counted,
            allow_origins=[ANY] if ANY in allowed_origins else sorted(allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=[ANY],
            expose_headers=EXPOSED_HEADERS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        CARRIER.set(headers)
        refusal = self._refusal(scope, headers)
        if refusal is UNAUTHORIZED and self._login is not None and self._login.wants(scope, headers):
            await self._login(scope, receive, send)
        elif refusal is not None:
            logger.info("%s %s refused: %s", scope["type"], scope["path"][:200], refusal.detail)
            _is_refused.set(scope["type"] == "websocket")
            await _refuse(scope, receive, send, refusal)
        elif scope["type"] == "websocket":
            await self._app(scope, receive, send)
        elif self._origins.lists(headers.get("origin")):
            await self._cross_origin(scope, receive, send)
        elif "transfer-encoding" in headers:
            await self._counted(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Why the request may not enter; None if it may."""
        is_open = scope["path"] in OPEN_PATHS
        if self._keys is not None and not is_open and not self._is_known(scope, headers):
            return UNAUTHORIZED
        if self._hosts is not None and not is_open and not self._hosts.accept(scope, headers):
            return WRONG_HOST
        if not self._origins.accept(scope, headers):
            return WRONG_ORIGIN
        size = headers.get("content-length")
        if size is not None and _exceeds(size, self._max_body_bytes):
            return _too_large(size, self._max_body_bytes)
        return None

    def _is_known(self, scope: Scope, headers: Headers) -> bool:
        if self._is_preflight(scope, headers):  # carries no token, by its specification
            return True
        if self._login is not None and self._login.admits(scope["path"], headers):
            return True
        assert self._keys is not None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not scheme:  # clients of the Open Reward Standard send the token in a header of their own
            return self._keys.accept(headers.get("x-api-key", "").strip())
        return scheme.lower() == "bearer" and self._keys.accept(token.strip())

    def _is_preflight(self, scope: Scope, headers: Headers) -> bool:
        """Whether a browser asks, for a page of an allowed origin, what the page may send."""
        if scope.get("method") != "OPTIONS" or "access-control-request-method" not in headers:
            return False
        return self._origins.lists(headers.get("origin"))

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count its body while it is read: its size may be unannounced."""
        read = 0
        answered = refused = False

        async def counting() -> Message:
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_body_bytes:
                if not (answered or refused):
                    refused = True
                    await _refuse(scope, receive, send, _too_large(f"{read} or more", self._max_body_bytes))
                raise BodyTooLarge
            return message

        async def unless_refused(message: Message) -> None:
            nonlocal answered
            answered = True
            if not refused:
                await send(message)

        with suppress(BodyTooLarge):
            await self._app(scope, counting, unless_refused)


def _exceeds(size: str, limit: int) -> bool:
    """Whether a `Content-Length` is above the limit, however many digits it has."""
    return not size.isdecimal() or len(size) > 18 or int(size) > limit


def _too_large(size: str, limit: int) -> Refusal:
    shown = size if len(size) < 40 else f"a number of {len(size)} digits"
    return Refusal(
        413,
        f"the request has {shown} bytes, and this server reads up to {limit} (max_message_bytes)",
        MessageTooLarge.code,
    )


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    sent = Headers(scope=scope)
    has_body = sent.get("content-length", "0") != "0" or "transfer-encoding" in sent
    # A refused body is never read, so the connection cannot carry another request.
    headers = {"Connection": "close"} if has_body else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response = JSONResponse({"detail": refusal.detail, "code": refusal.code}, refusal.status, headers)
    await response(scope, receive, send)
