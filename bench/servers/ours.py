"""EnvTorch, serving: `python -m bench.servers.ours FD KIND [asgi]`, and `main` knows the kinds."""

import socket
import sys

import envtorch
from bench.servers.environment import Served, echo, pictures, together
from envtorch.server import create_app, serve

CAPACITY = 20_000


def served(kind: str) -> Served:
    """The environment that is called so."""
    match kind:
        case "pictures":
            return pictures(envtorch, as_lists=False)
        case "together":
            return together(envtorch)
    return echo(envtorch, kind)


def main(descriptor: int, kind: str, *how: str) -> None:
    listener = socket.socket(fileno=descriptor)
    if kind == "process":
        from bench.servers.isolated import Echo, Said, Say

        app = create_app(Echo, Say, Said, max_concurrent_envs=CAPACITY, isolation="process")
    elif kind == "coding":
        from envtorch.envs.coding_env.app import app
    else:
        app = create_app(*served(kind), max_concurrent_envs=CAPACITY)
    if "asgi" in how:
        import uvicorn

        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
    else:
        serve(app, listener=listener)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
