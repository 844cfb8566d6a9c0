"""Serves an environment made of tools on EnvTorch: `serve_basket.py FD`."""

import socket
import sys
from pathlib import Path

from envtorch.server import create_app, serve
from envtorch.tools import CallToolAction, CallToolObservation


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    listener = socket.socket(fileno=int(sys.argv[1]))
    source = "tests.tools.environments:Basket"
    app = create_app(source, CallToolAction, CallToolObservation, max_concurrent_envs=64)
    serve(app, listener=listener)


if __name__ == "__main__":
    main()
