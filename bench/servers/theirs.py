"""OpenEnv, serving the echo: `python -m bench.servers.theirs FD thread|async|pictures [uvloop]`

Runs where OpenEnv is installed. Its install brings uvicorn without uvloop and httptools; with `uvloop` it
gets both.
"""

import socket
import sys
from types import SimpleNamespace

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from bench.servers.environment import echo, pictures

CAPACITY = 20_000


def main(descriptor: int, kind: str, *how: str) -> None:
    listener = socket.socket(fileno=descriptor)
    base = SimpleNamespace(Action=Action, Observation=Observation, State=State, Environment=Environment)
    served = pictures(base, as_lists=True) if kind == "pictures" else echo(base, kind)
    app = create_app(*served, max_concurrent_envs=CAPACITY)
    fast = "uvloop" in how
    config = uvicorn.Config(
        app,
        log_level="warning",
        loop="uvloop" if fast else "asyncio",
        http="httptools" if fast else "h11",
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
