"""Serves the tally environment on EnvTorch, on a socket that the parent bound: `serve_tally.py FD`."""

import socket
import sys

from envtorch.server import create_app, serve


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    app = create_app("tally:TallyEnvironment", env_name="tally", max_concurrent_envs=16)
    serve(app, listener=listener)


if __name__ == "__main__":
    main()
