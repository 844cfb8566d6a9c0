"""Serves an environment made of tools on EnvTorch: `serve_basket.py FD WORKERS`."""

import socket
import sys
from pathlib import Path
from typing import Any

from envtorch.server import create_app, serve
from envtorch.server.workers import serve_workers
from envtorch.tools import CallToolAction, CallToolObservation


def application(source: str) -> Any:
    return create_app(source, CallToolAction, CallToolObservation, max_concurrent_envs=64)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    listener = socket.socket(fileno=int(sys.argv[1]))
    source, workers = "tests.tools.environments:Basket", int(sys.argv[2])
    if workers > 1:
        loader = "tests.compat.serve_basket:application"
        serve_workers(source, workers=workers, listener=listener, loader=loader)
    else:
        serve(application(source), listener=listener)


if __name__ == "__main__":
    main()
