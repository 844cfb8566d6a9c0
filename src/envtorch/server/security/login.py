"""How a person with a browser shows a token: a form, and then a cookie that stands for the token.

The cookie holds a ticket: a time, and a mark that only who knows the token can make of it. It opens the web
page and nothing else, ends by itself, and ends with its token.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from envtorch.server.security.keys import Keys

__all__ = ["Login"]

PAGE = "/web"
COOKIE = "EnvTorch-Ticket"
GOOD_FOR_S = 12 * 3600
_LONGEST_FORM = 4096
_LONGEST_TIME = 12
"""Digits of a time in seconds; Python refuses to read numbers of thousands of digits."""


class Login:
    """Asks browsers for a token at `/web`, and knows those that have shown one."""

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock

    def admits(self, path: str, headers: Headers) -> bool:
        """Whether this request may see the page, by its ticket."""
        if not _is_page(path):
            return False
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        until, _, mark = (cookie.value if cookie else "").partition(".")
        if not (until.isascii() and until.isdecimal() and len(until) <= _LONGEST_TIME):
            return False
        if int(until) < self._clock():
            return False
        shown = mark.encode()
        return any(hmac.compare_digest(shown, _mark(token, until).encode()) for token in self._keys.good())

    def wants(self, scope: Scope, headers: Headers) -> bool:
        """Whether to answer with the form: a person is at the page's door, with or without a token."""
        if scope["type"] != "http" or not (_is_page(scope["path"]) or scope["path"] == "/"):
            return False
        return scope["path"] == f"{PAGE}/login" or "text/html" in headers.get("accept", "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._entered(request) if request.method == "POST" else _form()
        await response(scope, receive, send)

    async def _entered(self, request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_FORM:
                return _form("That is too long for a token.")
        token = parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
        if not self._keys.accept(token):
            return _form("The server does not take this token.")
        until = str(int(self._clock() + GOOD_FOR_S))
        response = RedirectResponse(f"{PAGE}/", status_code=303)
        response.set_cookie(
            COOKIE,
            f"{until}.{_mark(token.encode(), until)}",
            max_age=GOOD_FOR_S,
            path=PAGE,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response


def _is_page(path: str) -> bool:
    return path == PAGE or path.startswith(f"{PAGE}/")


def _mark(token: bytes, until: str) -> str:
    return hmac.new(token, f"envtorch web {until}".encode(), hashlib.sha256).hexdigest()


def _form(complaint: str = "") -> Response:
    told = f'<p role="alert">{complaint}</p>' if complaint else ""
    return HTMLResponse(
        _FORM.replace("COMPLAINT", told), status_code=401, headers={"Cache-Control": "no-store"}
    )


_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>EnvTorch: token</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { display: grid; place-items: center; min-height: 90vh; margin: 0; }
form { display: grid; gap: .75rem; width: min(22rem, 90vw); }
h1 { font-size: 1.25rem; margin: 0; }
input, button { font: inherit; padding: .6rem .75rem; border-radius: .5rem; border: 1px solid #94a3b8; }
button { background: #ea580c; border-color: #ea580c; color: white; font-weight: 600; }
p { margin: 0; opacity: .8; } [role=alert] { color: #dc2626; opacity: 1; }
</style></head><body>
<form method="post" action="/web/login">
<h1>This server wants a token</h1>
<p>The one that <code>ENVTORCH_TOKEN</code> or <code>--token-file</code> gave it.</p>
<input type="password" name="token" aria-label="Token" autocomplete="current-password" autofocus required>
<button>Enter</button>COMPLAINT
</form></body></html>
"""
