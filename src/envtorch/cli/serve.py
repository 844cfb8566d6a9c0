"""`envtorch serve`: an environment, served."""

import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from envtorch.compat.loader import load_app
from envtorch.errors import ConfigurationError, EnvTorchError

__all__ = ["serve"]

PRELUDES = ("envtorch.compat:activate",)
"""What a process of an environment calls first, so that OpenEnv's import names work there."""


def serve(
    target: Annotated[
        str, typer.Argument(help="module:app, module:Environment, a directory, or a bundled name")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="Tokens that callers must show, one per line, optionally with an expiry."),
    ] = None,
    drain: Annotated[float, typer.Option(help="Seconds that running calls have at SIGTERM.")] = 30.0,
    isolation: Annotated[
        str | None, typer.Option(help="'process': every session's environment in a process of its own.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that serve together: one port, one set of sessions.")
    ] = 1,
    fd: Annotated[
        int | None, typer.Option(help="Listen on this inherited, already bound socket instead.")
    ] = None,
) -> None:
    """Serve an environment over HTTP, WebSocket and MCP until interrupted."""
    if workers > 1:
        _serve_workers(target, workers, _listener(host, port, fd), isolation, token_file, drain)
        return
    try:
        app = load_app(target)
        if isolation is not None:
            _isolate(app, target, isolation)
    except EnvTorchError as error:
        raise typer.BadParameter(str(error), param_hint="TARGET") from error
    listener = _listener(host, port, fd)
    address, bound_port = listener.getsockname()[:2]
    typer.echo(f"EnvTorch serves {target} on http://{address}:{bound_port} (docs at /docs)", err=True)
    from envtorch.server import serve as run

    run(app, listener=listener, token_file=token_file, drain_s=drain)


def _serve_workers(
    target: str,
    workers: int,
    listener: socket.socket,
    isolation: str | None,
    token_file: Path | None,
    drain_s: float,
) -> None:
    from envtorch.server.workers import serve_workers

    address, port = listener.getsockname()[:2]

    def say(count: int) -> None:
        served = f"EnvTorch serves {target} on http://{address}:{port}"
        typer.echo(f"{served} with {count} worker{'s'[: count > 1]} (docs at /docs)", err=True)

    try:
        serve_workers(
            target,
            workers=workers,
            listener=listener,
            token_file=token_file,
            drain_s=drain_s,
            isolation=isolation,
            preludes=PRELUDES,
            loader="envtorch.compat.loader:load_app",
            on_ready=say,
        )
    except EnvTorchError as error:
        raise typer.BadParameter(str(error), param_hint="TARGET") from error


def _isolate(app: Any, target: str, isolation: str) -> None:
    server = getattr(getattr(app, "state", None), "env_server", None)
    if server is None:
        raise ConfigurationError(f"{target} is no application of ours, so its sessions cannot be isolated")
    server.isolate(isolation, preludes=PRELUDES)


def _listener(host: str, port: int, fd: int | None) -> socket.socket:
    if fd is not None:
        return socket.socket(fileno=fd)
    try:
        return socket.create_server((host, port), backlog=2048, reuse_port=False)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot listen on {host}:{port} ({error.strerror}); try another --port, or --port 0"
        ) from error
