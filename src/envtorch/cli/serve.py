"""`envtorch serve`: an environment, served."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envtorch.cli.serving import TARGET_HELP
from envtorch.errors import ConfigurationError, EnvTorchError
from envtorch.settings import ask_for_web_page

if TYPE_CHECKING:
    from envtorch.server import HTTPEnvServer

__all__ = ["serve"]

PRELUDES = ("envtorch.compat:activate",)
"""What a process of an environment calls first, so that OpenEnv's import names work there."""

ADDRESS, SESSIONS, DEVELOP = "Address", "Sessions", "Development"


def serve(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)],
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=ADDRESS)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free one.", rich_help_panel=ADDRESS)
    ] = 8000,
    fd: Annotated[
        int | None,
        typer.Option(help="Listen on this inherited, already bound socket instead.", rich_help_panel=ADDRESS),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Tokens that callers must show, one per line, optionally with an expiry.",
            rich_help_panel=ADDRESS,
        ),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            help="'process': every session's environment in a process of its own.", rich_help_panel=SESSIONS
        ),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most sessions at a time, whatever the application says; one, if it says nothing.",
            rich_help_panel=SESSIONS,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes that serve together: one port, one set of sessions.",
            rich_help_panel=SESSIONS,
        ),
    ] = 1,
    web: Annotated[
        bool, typer.Option("--web", help="With a web page at /web (extra 'web').", rich_help_panel=ADDRESS)
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Write every episode down, in this directory.", rich_help_panel=SESSIONS),
    ] = None,
    drain: Annotated[
        float, typer.Option(help="Seconds that running calls have at SIGTERM.", rich_help_panel=SESSIONS)
    ] = 30.0,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start anew when a source file changes.", rich_help_panel=DEVELOP),
    ] = False,
) -> None:
    """Serve an environment over HTTP, WebSocket and MCP until interrupted."""
    if web:
        ask_for_web_page()
    if reload:
        from envtorch.cli.reload import serve_and_reload

        options = {
            "--token-file": token_file,
            "--isolation": isolation,
            "--sessions": sessions,
            "--workers": workers,
            "--record": record,
            "--drain": min(drain, 2.0),  # whoever edits does not want to wait
        }
        serve_and_reload(target, _listener(host, port, fd), options)
        return
    if workers > 1:
        _serve_workers(
            target, workers, _listener(host, port, fd), isolation, sessions, token_file, drain, record, web
        )
        return
    app = _application(target, isolation, sessions, record)
    listener = _listener(host, port, fd)
    address, bound_port = listener.getsockname()[:2]
    typer.echo(f"EnvTorch serves {target} on http://{address}:{bound_port} ({_places(web)})", err=True)
    if record is not None:
        typer.echo(f"Every episode is written to {record}", err=True)
    from envtorch.server import serve as run

    run(app, listener=listener, token_file=token_file, drain_s=drain)


def _serve_workers(
    target: str,
    workers: int,
    listener: socket.socket,
    isolation: str | None,
    sessions: int | None,
    token_file: Path | None,
    drain_s: float,
    record: Path | None,
    web: bool,
) -> None:
    from envtorch.server.workers import serve_workers

    address, port = listener.getsockname()[:2]

    def say(count: int) -> None:
        served = f"EnvTorch serves {target} on http://{address}:{port}"
        typer.echo(f"{served} with {count} worker{'s'[: count > 1]} ({_places(web)})", err=True)

    try:
        serve_workers(
            target,
            workers=workers,
            listener=listener,
            token_file=token_file,
            drain_s=drain_s,
            isolation=isolation,
            sessions=sessions,
            record=record,
            preludes=PRELUDES,
            loader="envtorch.compat.loader:load_app",
            on_ready=say,
        )
    except EnvTorchError as error:
        raise typer.BadParameter(str(error), param_hint="TARGET") from error


def _places(web: bool) -> str:
    return "the page at /web, docs at /docs" if web else "docs at /docs"


def _application(target: str, isolation: str | None, sessions: int | None, record: Path | None) -> Any:
    from envtorch.compat.loader import load_app

    try:
        app = load_app(target)
        if isolation is not None:
            _server_of(app, target, "isolated").isolate(isolation, preludes=PRELUDES)
        if sessions is not None:
            _server_of(app, target, "counted").make_room(sessions)
        if record is not None:
            _server_of(app, target, "recorded").record(record)
    except EnvTorchError as error:
        raise typer.BadParameter(str(error), param_hint="TARGET") from error
    return app


def _server_of(app: Any, target: str, what: str) -> "HTTPEnvServer":
    from envtorch.server import HTTPEnvServer

    server = getattr(getattr(app, "state", None), "env_server", None)
    if not isinstance(server, HTTPEnvServer):
        raise ConfigurationError(f"{target} is no application of ours, so its sessions cannot be {what}")
    return server


def _listener(host: str, port: int, fd: int | None) -> socket.socket:
    if fd is not None:
        return socket.socket(fileno=fd)
    try:
        return socket.create_server((host, port), backlog=2048, reuse_port=False)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot listen on {host}:{port} ({error.strerror}); try another --port, or --port 0"
        ) from error
