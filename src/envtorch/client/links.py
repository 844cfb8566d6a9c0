"""Blocking links: how a client's questions reach an environment, near or far."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from envtorch.client.blocking_socket import BlockingSocket
from envtorch.client.options import ClientOptions
from envtorch.env import Environment, EnvironmentSource, load_object
from envtorch.errors import ConfigurationError, EnvTorchError, TimedOut, Unsupported
from envtorch.protocol.client import CLOSE, Pairing, websocket_url
from envtorch.protocol.codec import Codec
from envtorch.protocol.flow import drive, settle
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.messages import Close, Mcp, decode
from envtorch.protocol.tools import answer_tools
from envtorch.protocol.wire import Answer, Ask, error_reply

__all__ = ["NO_FORK", "Link", "LocalLink", "SocketLink", "connect_socket", "make_host"]


NO_FORK = "this session cannot be forked: it speaks OpenEnv's wire, which has no word for that"


class Link(Protocol):
    """Carries one question at a time, and brings back its answer."""

    @property
    def format(self) -> Format:
        """What questions are encoded in."""

    def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        """The answer, within the caller's time or, without one, the client's usual patience."""

    def fork(self, count: int, *, timeout_s: float | None) -> Sequence["Link"]:
        """Links to that many copies of this session, all or none."""

    def close(self) -> None: ...


def connect_socket(options: ClientOptions, *, timeout_s: float | None = None) -> BlockingSocket:
    """A socket to the server, on the best wire that it speaks."""
    return BlockingSocket.connect(
        websocket_url(options.base_url),
        timeout_s=options.connect_timeout_s if timeout_s is None else timeout_s,
        max_message_bytes=options.max_message_bytes,
        headers={**options.all_headers, "EnvTorch-Pings": "unanswered"},
        subprotocols=options.subprotocols,
        alert_s=options.alert_s,
    )


class SocketLink:
    """One session over one WebSocket, on OpenEnv's wire. When the socket goes, the session is lost."""

    format = JSON

    def __init__(self, socket: BlockingSocket, options: ClientOptions) -> None:
        self._socket = socket
        self._patience_s = options.message_timeout_s
        self._pairing = Pairing()

    def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        limit = self._patience_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        self._pairing.asked()
        self._socket.send(ask.frame(), deadline=deadline)
        while True:
            try:
                frame = self._socket.receive(deadline)
            except TimedOut:
                raise TimedOut(f"{ask.type} was not answered within {limit:g} s") from None
            if self._pairing.answers_the_last():
                return Answer.read(frame)

    def fork(self, count: int, *, timeout_s: float | None) -> Sequence[Link]:
        raise Unsupported(NO_FORK)

    def close(self) -> None:
        try:
            self._socket.send(CLOSE.frame(), deadline=time.monotonic() + 1.0)
        except EnvTorchError:
            pass  # there is nobody left to tell
        finally:
            self._socket.close()


class LocalLink:
    """An environment in this process, behind the same codec and the same rules as a served one."""

    format = JSON

    def __init__(self, host: EnvironmentHost) -> None:
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None

    def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        try:
            request = decode(ask.frame())
            assert not isinstance(request, Close)
            if isinstance(request, Mcp):
                flow = answer_tools(self._host, request)
            else:
                flow = self._host.reply(request, strict=True, timeout_s=timeout_s)
            reply = drive(flow, self._settle)
        except EnvTorchError as error:
            reply = error_reply(error)
        return Answer.read(reply.frame())

    def fork(self, count: int, *, timeout_s: float | None) -> Sequence[Link]:
        return [LocalLink(copy) for copy in drive(self._host.fork(count), self._settle)]

    def _settle(self, value: Any) -> Any:
        """An async environment keeps one loop for its whole life, which runs while it is called."""
        if not asyncio.iscoroutine(value):
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(settle(value))

    def close(self) -> None:
        try:
            drive(self._host.close(), self._settle)
        finally:
            if self._loop is not None:
                self._loop.close()


def make_host(
    source: EnvironmentSource | None, default: str | None, codec: Codec[Any, Any, Any]
) -> EnvironmentHost:
    """The environment that `local()` was asked for, ready to be called."""
    return EnvironmentHost(_make(source, default), codec)


def _make(source: EnvironmentSource | None, default: str | None) -> Environment[Any, Any, Any]:
    found = source if source is not None else default
    if found is None:
        raise ConfigurationError(
            "say which environment to run: MyEnv.local(MyEnvironment), or declare the client as "
            "`class MyEnv(EnvClient[...], environment='package.module:MyEnvironment')`"
        )
    if isinstance(found, str):
        found = load_object(found)
    return found if isinstance(found, Environment) else found()
