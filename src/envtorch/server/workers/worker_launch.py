"""`serve_workers`: an application, served by several processes."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.server.serve import find_dead_peers, is_loopback
from envtorch.server.workers.master import Master, require_support
from envtorch.server.workers.peer_directory import private_directory
from envtorch.server.workers.worker_messages import WorkerPlan
from envtorch.settings import Settings

__all__ = ["serve_workers"]


def serve_workers(
    target: str,
    *,
    workers: int,
    host: str = "127.0.0.1",
    port: int = 8000,
    listener: socket.socket | None = None,
    token_file: Path | str | None = None,
    finish_s: float | None = None,
    drain_s: float | None = None,
    isolation: str | None = None,
    sessions: int | None = None,
    preludes: Sequence[str] = (),
    record: Path | str | None = None,
    record_required: bool = False,
    loader: str = "envtorch.server.workers.worker:application",
    on_ready: Callable[[int], None] = lambda workers: None,
    **options: Any,
) -> None:
    """Serve `target`, `"module:app"` or `"module:Environment"`, with several processes, until told to stop.

    It is the server that `serve` runs, on as many cores: one capacity, one set of sessions, whichever worker
    a connection reaches. A worker that ends is replaced, and its sessions are `SessionLost`. What a worker
    serves it loads by name. `sessions` is the most there may be, in all workers together, where that is not
    what the application says. With `record`, every worker writes its episodes to a file of its own in that
    directory. `on_ready` is told how many workers serve, once they do. `options` are uvicorn's.
    Raises `ConfigurationError` when the application cannot be loaded.
    """
    if workers < 1:
        raise ConfigurationError(f"a server has at least one worker, not {workers}")
    require_support()
    if listener is None:
        listener = socket.create_server((host, port), backlog=2048)
    find_dead_peers(listener)
    settings = Settings.from_environ()
    with private_directory() as directory, listener:
        plan = WorkerPlan(
            master=os.getpid(),
            directory=str(directory),
            secret=secrets.token_urlsafe(32),
            loader=loader,
            target=target,
            finish_s=settings.finish_s if finish_s is None else finish_s,
            drain_s=settings.drain_s if drain_s is None else drain_s,
            is_exposed=not is_loopback(listener),
            isolation=isolation,
            sessions=sessions,
            preludes=list(preludes),
            record=str(Path(record).absolute()) if record is not None else None,
            record_required=record_required,
            token_file=str(Path(token_file).absolute()) if token_file is not None else None,
            options=options,
        )
        asyncio.run(Master(plan, listener, workers, on_ready).run())
