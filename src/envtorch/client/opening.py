"""How a client's sessions are opened: the first socket, the wire that was agreed on, and the sessions on
it."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from envtorch.client.client_options import ClientOptions
from envtorch.client.episode_log import EpisodeLog
from envtorch.client.replaying import TRIED_AGAIN, Replaying
from envtorch.client.vector_replaying import ReplayingSessions
from envtorch.client.vector_sessions import VectorSessions
from envtorch.errors import Unsupported
from envtorch.protocol.backoff import new_backoff
from envtorch.protocol.base_session import BaseSession
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.formats import Format
from envtorch.protocol.reconnect import (
    Drop,
    Move,
    Reconnecting,
    Sleep,
    SocketFlow,
    connected,
)

__all__ = [
    "NO_CANCEL",
    "NO_FORK",
    "Session",
    "copy_of",
    "open_session",
    "open_vector",
    "reconnecting",
    "resumed",
]

Session = BaseSession | Reconnecting | Replaying

NO_FORK = "this session cannot be forked: it speaks OpenEnv's wire, which has no message for that"
NO_CANCEL = "OpenEnv's wire cannot take a request back"
NO_VECTOR = (
    "this server speaks OpenEnv's wire only, which has one session per socket: open that many clients instead"
)
Exceptions = tuple[type[BaseException], ...]
T = TypeVar("T")


def open_session(options: ClientOptions, unharmful: Exceptions = ()) -> SocketFlow[Session]:
    """One session, over the best wire that the server speaks."""
    if options.recover is None:
        return (yield from _open_one(options, unharmful))
    session = yield from _somewhere(partial(_open_one, options, unharmful), options)
    try:
        return _replaying(options, session, EpisodeLog(), unharmful)
    except Unsupported:
        yield from session.close()
        raise


def _somewhere(open: Callable[[], SocketFlow[T]], options: ClientOptions) -> SocketFlow[T]:
    """The first sessions of a client that recovers: elsewhere, if its own server is not there."""
    deadline = time.monotonic() + options.connect_timeout_s
    backoff = new_backoff()
    while True:
        try:
            return (yield from open())
        except TRIED_AGAIN:
            delay = backoff.next_s()
            left_s = deadline - time.monotonic() - delay
            if not options.elsewhere or left_s <= 0:
                raise
        yield Sleep(delay)
        yield Move(left_s)


def _open_one(options: ClientOptions, unharmful: Exceptions) -> SocketFlow[BaseSession | Reconnecting]:
    session = yield from _connect_one(options, unharmful)
    if isinstance(session, Reconnecting):
        yield from session.open()
    return session


def _connect_one(options: ClientOptions, unharmful: Exceptions) -> SocketFlow[BaseSession | Reconnecting]:
    """A socket for one session, which its `open()` opens; over OpenEnv's wire it is open already."""
    format = yield from connected(options.timings, time.monotonic)
    if format is None:
        return BaseSession(options.timings, time.monotonic)
    return _unopened(options, format, 1, unharmful)


def open_vector(options: ClientOptions, count: int, unharmful: Exceptions = ()) -> SocketFlow[VectorSessions]:
    """That many sessions on one socket, or none. Raises `Unsupported` on OpenEnv's wire."""
    opening = partial(_open_many, options, count, unharmful)
    if options.recover is None:
        return VectorSessions((yield from opening()))
    connection = yield from _somewhere(opening, options)
    recover_s, clock = options.recover_s, time.monotonic
    try:
        return ReplayingSessions(
            connection,
            recover_s=recover_s,
            clock=clock,
            unharmful=unharmful,
            has_elsewhere=bool(options.elsewhere),
        )
    except Unsupported:
        yield from connection.close()
        raise


def _open_many(options: ClientOptions, count: int, unharmful: Exceptions) -> SocketFlow[Reconnecting]:
    format = yield from connected(options.timings, time.monotonic)
    if format is None:
        yield Drop(politely=True)
        raise Unsupported(NO_VECTOR)
    sessions = _unopened(options, format, count, unharmful)
    yield from sessions.open()
    return sessions


def _unopened(options: ClientOptions, format: Format, count: int, unharmful: Exceptions) -> Reconnecting:
    """Sessions to be opened on the socket that there is."""
    channels = ClientChannels(format, count, wait_s=options.wait_s)
    return Reconnecting(
        channels, options.timings, clock=time.monotonic, is_connected=True, unharmful=unharmful
    )


def _replaying(
    options: ClientOptions, session: BaseSession | Reconnecting, log: EpisodeLog, unharmful: Exceptions
) -> Replaying:
    connect = partial(_connect_one, options, unharmful)
    return Replaying(
        session,
        connect,
        log,
        recover_s=options.recover_s,
        clock=time.monotonic,
        unharmful=unharmful,
        has_elsewhere=bool(options.elsewhere),
    )


def reconnecting(session: Session) -> Reconnecting | None:
    """The session's own connection, if it is one that can fork and cancel."""
    if isinstance(session, Replaying):
        session = session.session
    return session if isinstance(session, Reconnecting) else None


def resumed(options: ClientOptions, format: Format, token: str, unharmful: Exceptions = ()) -> Reconnecting:
    """A session that exists on the server, to be attached by `open()`."""
    channels = ClientChannels(format, token=token)
    return Reconnecting(channels, options.timings, clock=time.monotonic, unharmful=unharmful)


def copy_of(
    session: Session, options: ClientOptions, token: str, unharmful: Exceptions = ()
) -> Reconnecting | Replaying:
    """A copy of `session` that a fork has made on the server, to be attached by `open()`."""
    copy = resumed(options, session.format, token, unharmful)
    origin = reconnecting(session)
    copy.channels.replica = None if origin is None else origin.channels.replica
    if not isinstance(session, Replaying):
        return copy
    return _replaying(options, copy, session.log.copy(), unharmful)
