"""Run an application: uvicorn, with the settings an environment server wants."""

import socket
from typing import Any

import uvicorn

__all__ = ["MAX_MESSAGE_BYTES", "serve", "uvicorn_config"]

MAX_MESSAGE_BYTES = 100 * 1024 * 1024
"""The largest frame a server reads; OpenEnv's clients send frames up to this size."""


def uvicorn_config(app: Any, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration for `app`; `options` are uvicorn's own and win over ours."""
    return uvicorn.Config(
        app,
        **{
            "ws_max_size": MAX_MESSAGE_BYTES,
            "ws_per_message_deflate": False,
            "log_level": "warning",
            **options,
        },
    )


def serve(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    listener: socket.socket | None = None,
    **options: Any,
) -> None:
    """Serve `app` until the process is told to stop.

    A `listener` is a socket that is already bound, which leaves no race for the port.
    """
    server = uvicorn.Server(uvicorn_config(app, host=host, port=port, **options))
    server.run(sockets=[listener] if listener is not None else None)
