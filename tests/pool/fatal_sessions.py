"""A server that is healthy, and ends when a session is opened."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from envtorch import create_app
from envtorch.envs.echo_env.environment import EchoEnvironment

Scope = MutableMapping[str, Any]

inner = create_app(EchoEnvironment)


async def app(
    scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    if scope["type"] == "websocket":
        os._exit(3)
    await inner(scope, receive, send)
