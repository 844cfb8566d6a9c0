"""OpenEnv, serving: `python -m bench.servers.theirs FD thread|async|together|pictures|coding [uvloop]`

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

from bench.servers.environment import Served, echo, pictures, together

CAPACITY = 20_000


def served(kind: str) -> Served:
    """The environment that is called so."""
    base = SimpleNamespace(Action=Action, Observation=Observation, State=State, Environment=Environment)
    match kind:
        case "pictures":
            return pictures(base, as_lists=True)
        case "together":
            return together(base)
        case "coding":
            from bench.servers.their_coding import served as coding

            return coding
    return echo(base, kind)


def main(descriptor: int, kind: str, *how: str) -> None:
    listener = socket.socket(fileno=descriptor)
    app = create_app(*served(kind), max_concurrent_envs=CAPACITY)
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
