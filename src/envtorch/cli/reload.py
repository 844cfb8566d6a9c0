"""`envtorch serve --reload`: a child serves, and is replaced when a source file changes.

The socket stays this process's own: whoever connects while the child starts waits in its queue.
"""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from envtorch.extras import missing_extra
from envtorch.settings import variables

try:
    from watchfiles import PythonFilter, watch
except ImportError as error:
    raise missing_extra("reload", "--reload needs the watchfiles package") from error

__all__ = ["serve_and_reload", "watched_places"]


def serve_and_reload(target: str, listener: socket.socket, options: Mapping[str, object]) -> None:
    """Serve until told to stop, with a fresh process after every change.

    `options` are those of `envtorch serve`, by their names on the command line. One that is None or False is
    left out.
    """
    places = watched_places(target)
    address, port = listener.getsockname()[:2]
    typer.echo(f"EnvTorch serves {target} on http://{address}:{port} and reloads when it changes", err=True)
    listener.set_inheritable(True)
    given = [part for name, value in options.items() for part in _as_arguments(name, value)]
    command = [sys.executable, "-m", "envtorch.cli", "serve", target, "--fd", str(listener.fileno()), *given]
    told_to_stop = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: told_to_stop.set())
    child = _start(command, listener)
    try:
        for changes in watch(*places, watch_filter=PythonFilter(), stop_event=told_to_stop):
            names = ", ".join(sorted({Path(path).name for _, path in changes})[:3])
            typer.echo(f"{names} changed: starting anew", err=True)
            _stop(child)
            child = _start(command, listener)
    finally:
        _stop(child)


def _as_arguments(name: str, value: object) -> tuple[str, ...]:
    if value is None or value is False:
        return ()
    return (name,) if value is True else (name, str(value))


def watched_places(target: str) -> list[Path]:
    """The directories whose Python files make up a target."""
    if Path(target).is_dir():
        return [Path(target).resolve()]
    return list(_homes(target.partition(":")[0])) or [Path.cwd()]


def _homes(module: str) -> Iterable[Path]:
    from importlib.util import find_spec

    for name in (module.partition(".")[0], f"envtorch.envs.{module.replace('-', '_')}"):
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent


def _start(command: list[str], listener: socket.socket) -> "subprocess.Popen[bytes]":
    environment = {**variables(), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment)  # noqa: S603


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
