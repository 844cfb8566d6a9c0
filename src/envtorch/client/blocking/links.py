"""Blocking links: how a client's requests reach an environment, on a server or in this process."""

import asyncio
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from envtorch.client.blocking.socket import BlockingShell
from envtorch.client.client_options import ClientOptions
from envtorch.client.guard import ProcessGuard, UseGuard
from envtorch.client.local_environment import answer_locally
from envtorch.client.opening import NO_FORK, Session, copy_of, open_session, reconnecting
from envtorch.errors import Unsupported
from envtorch.protocol.base_session import BaseSession
from envtorch.protocol.flow import drive, settle
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.reconnect import SocketFlow
from envtorch.protocol.requests import ask_fork
from envtorch.protocol.wire import Answer, Ask

__all__ = ["Link", "LocalLink", "SocketLink", "give_back", "open_link"]

T = TypeVar("T")

OPENED_TOGETHER = 16
"""How many copies of a session are attached at the same time."""


class Link(Protocol):
    """Carries one request at a time, and brings back its reply."""

    @property
    def format(self) -> Format:
        """What requests are encoded in."""

    def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        """The reply, within the caller's time or, without one, the client's usual limit."""

    def fork(self, count: int, *, timeout_s: float | None) -> Sequence["Link"]:
        """Links to that many copies of this session, all or none."""

    def close(self) -> None: ...


def open_link(options: ClientOptions) -> Link:
    """A session on the server, over the best wire that it speaks."""
    shell = BlockingShell(options)
    try:
        session = drive(open_session(options), shell.act)
    except BaseException:
        shell.drop()
        raise
    return SocketLink(shell, session)


class SocketLink:
    """One session on a server. A link that is dropped without `close` gives its slot back."""

    def __init__(self, shell: BlockingShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._guard = UseGuard("client")
        self._finalizer = weakref.finalize(self, give_back, shell, session, self._guard)

    @property
    def format(self) -> Format:
        return self._session.format

    def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        return self._run(self._session.exchange(ask, timeout_s))

    def fork(self, count: int, *, timeout_s: float | None) -> Sequence[Link]:
        if reconnecting(self._session) is None:
            raise Unsupported(NO_FORK)
        asking = ask_fork(count, self.format)
        tokens = drive(asking, lambda ask: self.exchange(ask, timeout_s=timeout_s))
        copies = [self._copy(token) for token in tokens]
        try:
            _together([copy.attach for copy in copies])  # now: a session that nobody holds ends
        except BaseException:
            _together([copy.close for copy in copies])
            raise
        return copies

    def _copy(self, token: str) -> "SocketLink":
        options = self._shell.for_copy()
        return SocketLink(BlockingShell(options), copy_of(self._session, options, token))

    def attach(self) -> None:
        """Attach to the session, which exists on the server."""
        assert not isinstance(self._session, BaseSession)
        self._run(self._session.open())

    def close(self) -> None:
        """End the session; if that is interrupted, it can be done again. In another process than the link's,
        only that process's descriptor is closed."""
        if self._guard.is_at_home:
            self._run(self._session.close())
            self._shell.release()
        else:
            self._shell.forget()
        self._finalizer.detach()

    def _run(self, flow: SocketFlow[T]) -> T:
        with self._guard as was_interrupted:
            if was_interrupted:
                drive(self._session.interrupted(), self._shell.act)
            return drive(flow, self._shell.act)


class Held(Protocol):
    """Sessions that a shell's socket carries."""

    @property
    def format(self) -> Format: ...
    def farewell(self) -> bytes | None:
        """A message that closes them, whose reply nobody reads."""


def give_back(shell: BlockingShell, session: Held, home: ProcessGuard) -> None:
    """What becomes of a link that nobody closed: the server is told, if that takes no waiting."""
    if home.is_at_home:
        shell.leave(session.farewell(), is_binary=session.format.is_binary)
        shell.release()
    else:
        shell.forget()


def _together(calls: Sequence[Any]) -> None:
    """Make these calls at the same time, and wait for all; raises what one of them raised."""
    if len(calls) == 1:
        calls[0]()
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(calls), OPENED_TOGETHER)) as threads:
        for _ in threads.map(lambda call: call(), calls):
            pass


class LocalLink:
    """An environment in this process. What it awaits runs on an event loop on a thread of its own."""

    format = JSON

    def __init__(self, host: EnvironmentHost) -> None:
        self._host = host
        self._guard = UseGuard("client")
        self._background: BackgroundLoop | None = None

    def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        with self._guard:
            return drive(answer_locally(self._host, ask, timeout_s), self._settle)

    def fork(self, count: int, *, timeout_s: float | None) -> Sequence[Link]:
        with self._guard:
            return [LocalLink(copy) for copy in drive(self._host.fork(count), self._settle)]

    def close(self) -> None:
        if not self._guard.is_at_home:
            return
        with self._guard:
            try:
                drive(self._host.close(), self._settle)
            finally:
                if self._background is not None:
                    self._background.close()
                    self._background = None

    def _settle(self, value: Any) -> Any:
        if not asyncio.iscoroutine(value):
            return value
        if self._background is None:
            self._background = BackgroundLoop()
        return self._background.run(value)


class BackgroundLoop:
    """An event loop on a thread of its own, so that a blocking call works where another loop runs already."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="envtorch-local", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, _stop, self._loop, self._thread, ProcessGuard("client"))

    def run(self, coroutine: Any) -> Any:
        """What a coroutine returns. If the caller is interrupted, it is cancelled."""
        running = asyncio.run_coroutine_threadsafe(settle(coroutine), self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        self._stop()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, home: ProcessGuard) -> None:
    if home.is_at_home:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
