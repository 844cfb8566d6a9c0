"""What a person names, as a server to talk to: a URL as it is, anything else served meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TARGET_HELP", "TARGET_OR_URL_HELP", "is_url", "served"]

TARGET_HELP = "module:app, module:Environment, a directory, or a bundled name like echo_env."
TARGET_OR_URL_HELP = f"The URL of a server, or what to serve: {TARGET_HELP}"


def is_url(target: str) -> bool:
    return target.startswith(("http://", "https://", "ws://", "wss://"))


@contextmanager
def served(target: str, *options: str) -> Iterator[str]:
    """The address of a server: `target` itself where it is one, else a child that ends with the block.

    `options` are those of `envtorch serve`.
    """
    if is_url(target):
        yield target
        return
    from envtorch.cli.target_server import TargetServer
    from envtorch.compat.loader import load_app

    load_app(target)  # a target that cannot be loaded is told here, in a sentence
    with TargetServer(target, options) as server:
        assert server.base_url is not None
        yield server.base_url
