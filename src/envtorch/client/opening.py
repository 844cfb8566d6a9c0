"""How a client's sessions are opened: the first socket, the wire that was agreed on, and the sessions on
it."""

import time

from envtorch.client.client_options import ClientOptions
from envtorch.errors import Unsupported
from envtorch.protocol.base_session import BaseSession
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.formats import Format
from envtorch.protocol.reconnect import Drop, Reconnecting, SocketFlow, connected

__all__ = ["NO_CANCEL", "NO_FORK", "Session", "open_session", "open_vector", "resumed"]

Session = BaseSession | Reconnecting

NO_FORK = "this session cannot be forked: it speaks OpenEnv's wire, which has no message for that"
NO_CANCEL = "OpenEnv's wire cannot take a request back"
NO_VECTOR = (
    "this server speaks OpenEnv's wire only, which has one session per socket: open that many clients instead"
)
Exceptions = tuple[type[BaseException], ...]


def open_session(options: ClientOptions, unharmful: Exceptions = ()) -> SocketFlow[Session]:
    """One session, over the best wire that the server speaks."""
    format = yield from connected(options.timings, time.monotonic)
    if format is None:
        return BaseSession(options.timings, time.monotonic)
    return (yield from _opened(options, format, 1, unharmful))


def open_vector(options: ClientOptions, count: int, unharmful: Exceptions = ()) -> SocketFlow[Reconnecting]:
    """That many sessions on one socket, or none. Raises `Unsupported` on OpenEnv's wire."""
    format = yield from connected(options.timings, time.monotonic)
    if format is None:
        yield Drop(politely=True)
        raise Unsupported(NO_VECTOR)
    return (yield from _opened(options, format, count, unharmful))


def _opened(
    options: ClientOptions, format: Format, count: int, unharmful: Exceptions
) -> SocketFlow[Reconnecting]:
    channels = ClientChannels(format, count, wait_s=options.wait_s)
    sessions = Reconnecting(
        channels, options.timings, clock=time.monotonic, is_connected=True, unharmful=unharmful
    )
    yield from sessions.open()
    return sessions


def resumed(options: ClientOptions, format: Format, token: str, unharmful: Exceptions = ()) -> Reconnecting:
    """A session that exists on the server, to be attached by `open()`."""
    channels = ClientChannels(format, token=token)
    return Reconnecting(channels, options.timings, clock=time.monotonic, unharmful=unharmful)
