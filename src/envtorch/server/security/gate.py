"""The lock on every door: a token, the origin of web pages, and the size of what is sent.

It is a plain ASGI middleware around the whole application, so that a route added later, by whomever, is
behind it too.
"""

import logging
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envtorch.server.security.keys import Keys
from envtorch.server.security.login import Login
from envtorch.server.telemetry.tracing import CARRIER

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health", "/ready")
"""What probes ask, and tells nothing: open to everybody."""


class TooLarge(Exception):
    """A body grew beyond the limit while it was read."""


class Gate:
    """Lets through what may enter, before any environment is built."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys | None = None,
        has_page: bool = False,
        allowed_origins: Collection[str] = (),
        max_body_bytes: int = 100 * 1024 * 1024,
    ) -> None:
        self._app = app
        self._keys = keys
        self._login = Login(keys) if keys is not None and has_page else None
        self._allowed_origins = frozenset(allowed_origins)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        CARRIER.set(headers)
        refusal = self._refusal(scope, headers)
        if refusal == 401 and self._login is not None and self._login.wants(scope, headers):
            await self._login(scope, receive, send)
        elif refusal is not None:
            logger.info("%s %s refused: %s", scope["type"], scope["path"], refusal)
            await _refuse(scope, receive, send, refusal)
        elif scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            await self._limited(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> int | None:
        """The status to refuse with; None for what may enter."""
        if self._keys is not None and scope["path"] not in OPEN_PATHS:
            is_known = self._login is not None and self._login.admits(scope["path"], headers)
            if not is_known and not self._has_token(headers):
                return 401
        if scope["type"] == "websocket" and not self._origin_fits(headers):
            return 403
        if int(headers.get("content-length", "0") or 0) > self._max_body_bytes:
            return 413
        return None

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        assert self._keys is not None
        return scheme.lower() == "bearer" and self._keys.accept(token.strip())

    def _origin_fits(self, headers: Headers) -> bool:
        """A page from elsewhere may not use its visitor's browser to reach a server on their machine."""
        origin = headers.get("origin")
        if origin is None or origin in self._allowed_origins:
            return True
        return urlsplit(origin).netloc == headers.get("host")

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0
        answered = refused = False

        async def counting() -> Message:
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_body_bytes:
                if not (answered or refused):
                    refused = True
                    await _refuse(scope, receive, send, 413)
                raise TooLarge
            return message

        async def unless_refused(message: Message) -> None:
            nonlocal answered
            answered = True
            if not refused:
                await send(message)

        with suppress(TooLarge):
            await self._app(scope, counting, unless_refused)


_WORDS = {
    401: ("this server wants a token: send 'Authorization: Bearer ...'", "UNAUTHORIZED"),
    403: ("this origin may not open a WebSocket here", "NOT_ALLOWED"),
    413: ("the request is too large", "PROTOCOL_ERROR"),
}


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int) -> None:
    detail, code = _WORDS[status]
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    response = JSONResponse({"detail": detail, "code": code}, status, headers)
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await response(scope, receive, send)
