"""A server for what a command line names: a URL as it is, anything else served by a child process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from envtorch.errors import ConfigurationError

__all__ = ["TARGET_HELP", "TARGET_OR_URL_HELP", "is_url", "served"]

TARGET_HELP = "module:app, module:Environment, a .py file, a directory, or a bundled name like echo_env."
TARGET_OR_URL_HELP = f"The URL of a server, or what to serve: {TARGET_HELP}"


def is_url(target: str) -> bool:
    return target.startswith(("http://", "https://", "ws://", "wss://"))


ROOM = 64
"""How many sessions a target has room for that a command serves for itself: episodes are forked there."""


@contextmanager
def served(target: str, *options: str) -> Iterator[str]:
    """The address of a server: `target` itself where it is one, else a child that ends with the block.

    A child has room for forks, where several of its environments may live in one process. `options` are those
    of `envtorch serve`.
    """
    if is_url(target):
        yield target
        return
    from envtorch.cli.target_server import TargetServer
    from envtorch.targets import load_app

    app = load_app(target)  # a target that cannot be loaded is refused here, in a sentence
    with TargetServer(target, [*_room_for_forks(app), *options]) as server:
        assert server.base_url is not None
        yield server.base_url


def _room_for_forks(app: Any) -> list[str]:
    server = getattr(getattr(app, "state", None), "env_server", None)
    if server is None or server.max_concurrent_envs >= ROOM:
        return []
    try:
        server.make_room(ROOM)
    except ConfigurationError:
        return []  # several of these environments may not live in one process
    return ["--sessions", str(ROOM)]
