"""The server that `check_provider` starts: it tells what it sees and does what it is asked.

    GET /health             200, unless PROBE_UNHEALTHY is set
    GET /environ/NAME       200 and the value of one environment variable, 404 when there is none
    GET /bytes/N            N bytes
    GET /exit/CODE          ends the process

It writes `probe: out` and `probe: err` when it starts, one on each stream; with PROBE_EXIT set it then
ends at once with that code, and with PROBE_STUBBORN it does not heed a request to end. Only the
standard library, so that one `python -c` in any image with a Python runs it (`PROBE_COMMAND`); `app`
is the same as an ASGI application.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


def answer(path: str) -> "tuple[int, bytes]":
    """Status and body for one request."""
    kind, _, argument = path.strip("/").partition("/")
    if kind == "health":
        return (503, b"unhealthy") if os.getenv("PROBE_UNHEALTHY") else (200, b"healthy")
    if kind == "environ":
        value = os.getenv(unquote(argument))
        return (404, b"") if value is None else (200, value.encode())
    if kind == "bytes":
        return 200, bytes(int(argument))
    if kind == "exit":
        sys.stdout.flush()
        os._exit(int(argument))
    return 404, b""


def begin() -> None:
    """What the server does when it starts."""
    sys.stdout.write("probe: out\n")
    sys.stdout.flush()
    sys.stderr.write("probe: err\n")
    sys.stderr.flush()
    code = os.getenv("PROBE_EXIT")
    if code is not None:
        os._exit(int(code))


async def app(
    scope: "dict[str, Any]", receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]
) -> None:
    """The probe as an ASGI application."""
    if scope["type"] == "lifespan":
        await receive()
        begin()
        if os.getenv("PROBE_STUBBORN"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    status, body = answer(scope["path"])
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


class Handler(BaseHTTPRequestHandler):
    """The probe over the standard library's server."""

    def do_GET(self) -> None:
        status, body = answer(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the log is for what the checks look for."""


def main(port: int = 8000) -> None:
    """Serve the probe on every interface of wherever this runs."""
    begin()
    stubborn = os.getenv("PROBE_STUBBORN")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda number, frame: os._exit(0))
    ThreadingHTTPServer(("0.0.0.0", port), Handler).serve_forever()  # noqa: S104


if __name__ == "__main__":
    main()
