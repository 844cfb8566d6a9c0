"""Serves the tally environment on OpenEnv, on a socket that the parent bound: `serve_tally.py FD`."""

import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_app
from tally import TallyAction, TallyEnvironment, TallyObservation


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    app = create_app(
        TallyEnvironment, TallyAction, TallyObservation, env_name="tally", max_concurrent_envs=16
    )
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
