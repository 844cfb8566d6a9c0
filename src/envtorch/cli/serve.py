"""`envtorch serve`: serve an environment."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envtorch.cli.author_logging import log_author_frames_only
from envtorch.cli.serving import TARGET_HELP
from envtorch.errors import ConfigurationError
from envtorch.settings import ask_for_web_page

if TYPE_CHECKING:
    from envtorch.server import HTTPEnvServer
    from envtorch.targets import Target

__all__ = ["serve"]

PRELUDES = ("envtorch.compat:activate_for_serving",)
"""What a process of an environment calls first, so that OpenEnv's import names work there."""

ADDRESS, SESSIONS, DEVELOP = "Address", "Sessions", "Development"


def _port(said: str | int) -> int:
    if str(said).isdecimal() and int(said) <= 65535:
        return int(said)
    raise typer.BadParameter(f"{said} is not a port: give a number from 0 to 65535 (0 picks a free one)")


def serve(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)],
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=ADDRESS)] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            parser=_port,
            metavar="NUMBER",
            help="Port to listen on; 0: any free one.",
            rich_help_panel=ADDRESS,
        ),
    ] = 8000,
    fd: Annotated[
        int | None,
        typer.Option(help="Listen on this inherited, already bound socket instead.", rich_help_panel=ADDRESS),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file of tokens that callers must send, one per line, optionally with an expiry.",
            rich_help_panel=ADDRESS,
        ),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            help="'process': run every session's environment in its own process.",
            rich_help_panel=SESSIONS,
        ),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many sessions at a time; by default what the application says, else 64.",
            rich_help_panel=SESSIONS,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many processes serve together, behind one port.",
            rich_help_panel=SESSIONS,
        ),
    ] = 1,
    web: Annotated[
        bool,
        typer.Option("--web", help="Serve a page at /web (extra 'web').", rich_help_panel=ADDRESS),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Record every episode, in this directory.", rich_help_panel=SESSIONS),
    ] = None,
    record_required: Annotated[
        bool,
        typer.Option(
            "--record-required",
            help="Refuse calls while the recording cannot be written.",
            rich_help_panel=SESSIONS,
        ),
    ] = False,
    finish: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Seconds that open sessions have to end at SIGTERM; ENVTORCH_FINISH, else 0.",
            rich_help_panel=SESSIONS,
        ),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Seconds that running calls have after that; ENVTORCH_DRAIN, else 30.",
            rich_help_panel=SESSIONS,
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start anew when a source file changes.", rich_help_panel=DEVELOP),
    ] = False,
) -> None:
    """Serve an environment over HTTP, WebSocket and MCP until interrupted."""
    from envtorch.targets import find_target

    if record_required and record is None:
        raise ConfigurationError("--record-required needs --record and a directory")
    found = find_target(target)
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
            "--record-required": record_required,
            "--drain": min(2.0 if drain is None else drain, 2.0),  # a person who edits does not want to wait
        }
        serve_and_reload(target, _listener(host, port, fd), options)
        return
    if workers > 1:
        _serve_workers(
            found,
            workers,
            _listener(host, port, fd),
            isolation,
            sessions,
            token_file,
            finish,
            drain,
            record,
            record_required,
            web,
        )
        return
    log_author_frames_only()
    app = _application(found, isolation, sessions, record, record_required)
    log_author_frames_only()  # again: with the environment came the packages that it uses
    listener = _listener(host, port, fd)

    def say() -> None:
        address, bound_port = listener.getsockname()[:2]
        typer.echo(
            f"EnvTorch serves {found.description} on http://{address}:{bound_port} ({_places(web)})", err=True
        )
        if record is not None:
            typer.echo(f"Every episode is recorded in {record}", err=True)

    from envtorch.server import serve as run

    run(app, listener=listener, token_file=token_file, finish_s=finish, drain_s=drain, on_ready=say)


def _serve_workers(
    target: "Target",
    workers: int,
    listener: socket.socket,
    isolation: str | None,
    sessions: int | None,
    token_file: Path | None,
    finish_s: float | None,
    drain_s: float | None,
    record: Path | None,
    record_required: bool,
    web: bool,
) -> None:
    from envtorch.server.workers import serve_workers

    address, port = listener.getsockname()[:2]

    def say(count: int) -> None:
        served = f"EnvTorch serves {target.description} on http://{address}:{port}"
        typer.echo(f"{served} with {count} worker{'s'[: count > 1]} ({_places(web)})", err=True)

    serve_workers(
        target.name,
        workers=workers,
        listener=listener,
        token_file=token_file,
        finish_s=finish_s,
        drain_s=drain_s,
        isolation=isolation,
        sessions=sessions,
        record=record,
        record_required=record_required,
        preludes=PRELUDES,
        loader="envtorch.targets:load_app",
        on_ready=say,
    )


def _places(web: bool) -> str:
    return "the page at /web, docs at /docs" if web else "docs at /docs"


def _application(
    target: "Target", isolation: str | None, sessions: int | None, record: Path | None, record_required: bool
) -> Any:
    app = target.load()
    if isolation is not None:
        _server_of(app, target, "--isolation").isolate(isolation, preludes=PRELUDES)
    if sessions is not None:
        _server_of(app, target, "--sessions").make_room(sessions)
    if record is not None:
        _server_of(app, target, "--record").record(record, required=record_required)
    return app


def _server_of(app: Any, target: "Target", option: str) -> "HTTPEnvServer":
    from envtorch.server import HTTPEnvServer

    server = getattr(getattr(app, "state", None), "env_server", None)
    if not isinstance(server, HTTPEnvServer):
        raise ConfigurationError(
            f"{target.name} was not made by create_app, so {option} has nothing to act on",
            next_step=f"leave {option} out, or name the environment itself, as module:Environment",
        )
    return server


def _listener(host: str, port: int, fd: int | None) -> socket.socket:
    if fd is not None:
        try:
            return socket.socket(fileno=fd)
        except OSError as error:
            raise ConfigurationError(
                f"--fd {fd} is no open socket: {error.strerror}", next_step="use --port instead"
            ) from error
    try:
        socket.getaddrinfo(host, port)
        return socket.create_server((host, port), backlog=2048, reuse_port=False)
    except socket.gaierror as error:
        raise ConfigurationError(
            f"--host {host!r} is no address that this machine knows",
            next_step="use 127.0.0.1 for this machine only, or 0.0.0.0 for every network it is in",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno) if error.errno else error}",
            next_step="choose another --port (0 picks a free one), or another --host",
        ) from error
