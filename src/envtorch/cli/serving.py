"""A server for what a command line names: a URL as it is, anything else served by a child process."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from envtorch.errors import ConfigurationError, ConnectFailed, Unauthorized
from envtorch.shown_urls import shown_url

__all__ = [
    "TARGET_HELP",
    "TARGET_OR_URL_HELP",
    "action_schema_at",
    "is_url",
    "refuse_unusable",
    "served",
]

TARGET_HELP = "module:app, module:Environment, a .py file, a directory, or a bundled name like echo_env."
TARGET_OR_URL_HELP = f"The URL of a server, or what to serve: {TARGET_HELP}"


def is_url(target: str) -> bool:
    """Whether a target is the address of a server. Raises `ConfigurationError` for one that cannot be."""
    if not target.startswith(("http://", "https://", "ws://", "wss://")):
        if re.fullmatch(r"[\w.-]+:\d+(/.*)?", target, re.ASCII):  # no module has an object with such a name
            raise ConfigurationError(
                f"{target!r} is an address without its scheme", next_step=f"write it as http://{target}"
            )
        return False
    refuse_unusable(target)
    return True


def refuse_unusable(url: str) -> None:
    """Raise `ConfigurationError` for a URL that has no host, or no number as its port."""
    try:
        parts = urlsplit(url)
        problem = None if parts.hostname and parts.port != 0 else "it has no host, or port 0"
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise ConfigurationError(
            f"{shown_url(url)!r} is not the address of a server: {problem}",
            next_step="write it as in http://127.0.0.1:8000",
        )


def action_schema_at(url: str, token: str | None) -> dict[str, Any]:
    """What the server at `url` says of its actions.

    Raises `ConnectFailed` where there is no server, `Unauthorized` where it does not take the token, and
    `ConfigurationError` where it serves no environment.
    """
    import httpx

    address = url.replace("ws://", "http://").replace("wss://", "https://").rstrip("/")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.get(f"{address}/schema", headers=headers, timeout=60)
        if response.status_code == 401:
            raise Unauthorized(f"{shown_url(url)} wants a token, and this one is missing, wrong or expired")
        schema: dict[str, Any] = response.raise_for_status().json()["action"]
    except httpx.TransportError as error:
        raise ConnectFailed(f"there is no server at {shown_url(url)}: {error}") from error
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{shown_url(url)} serves no environment: /schema says nothing of actions "
            f"(its status is {response.status_code})",
            next_step="name the address that `envtorch serve` prints",
        ) from error
    return schema


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
