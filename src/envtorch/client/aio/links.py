"""Async links: how an async client's requests reach an environment, on a server or in this process."""

import asyncio
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from envtorch.client.aio.socket import AsyncShell
from envtorch.client.client_options import ClientOptions
from envtorch.client.guard import ProcessGuard
from envtorch.client.local_environment import answer_locally
from envtorch.client.opening import NO_CANCEL, NO_FORK, Session, copy_of, open_session, reconnecting
from envtorch.errors import EnvTorchError, TimedOut, Unsupported
from envtorch.protocol.base_session import BaseSession
from envtorch.protocol.flow import drive_async, settle
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.reconnect import CANCEL_S, Cut, Late, Send
from envtorch.protocol.requests import ask_fork
from envtorch.protocol.wire import Answer, Ask

__all__ = ["UNHARMFUL", "AsyncLink", "AsyncLocalLink", "AsyncSocketLink", "give_back", "open_link"]

UNHARMFUL = (asyncio.CancelledError,)
"""A task is cancelled where it awaits, and loses nothing that has arrived."""


class AsyncLink(Protocol):
    """Carries one request at a time, and brings back its reply."""

    @property
    def format(self) -> Format:
        """What requests are encoded in."""

    async def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        """The reply, within the caller's time or, without one, the client's usual limit."""
        ...

    async def cancel(self) -> None:
        """Take the request back that is running, if one is."""

    async def fork(self, count: int, *, timeout_s: float | None) -> Sequence["AsyncLink"]:
        """Links to that many copies of this session, all or none."""
        ...

    async def close(self) -> None: ...


async def open_link(options: ClientOptions) -> AsyncLink:
    """A session on the server, over the best wire that it speaks."""
    shell = AsyncShell(options)
    try:
        session = await drive_async(open_session(options, UNHARMFUL), shell.act)
    except BaseException:
        shell.abort()
        raise
    return AsyncSocketLink(shell, session)


class AsyncSocketLink:
    """One session on a server. A link that is dropped without `close` gives its slot back."""

    def __init__(self, shell: AsyncShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._guard = ProcessGuard("client")
        self._finalizer = weakref.finalize(self, give_back, shell, session, self._guard)

    @property
    def format(self) -> Format:
        return self._session.format

    async def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        self._guard.require()
        return await drive_async(self._session.exchange(ask, timeout_s), self._shell.act)

    async def cancel(self) -> None:
        self._guard.require()
        session = reconnecting(self._session)
        if session is None:
            raise Unsupported(NO_CANCEL)
        frame = session.channels.withdrawals()
        if frame is not None:
            deadline = time.monotonic() + CANCEL_S
            with suppress(Cut, Late):
                await self._shell.act(Send(frame, deadline, self.format.is_binary))

    async def fork(self, count: int, *, timeout_s: float | None) -> Sequence[AsyncLink]:
        if reconnecting(self._session) is None:
            raise Unsupported(NO_FORK)
        asking = ask_fork(count, self.format)
        tokens = await drive_async(asking, lambda ask: self.exchange(ask, timeout_s=timeout_s))
        copies = [self._copy(token) for token in tokens]
        try:
            async with asyncio.TaskGroup() as attaching:  # now: a session that nobody holds ends
                for copy in copies:
                    attaching.create_task(copy.attach())
        except BaseException as error:
            await asyncio.gather(*(copy.close() for copy in copies), return_exceptions=True)
            raise (error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error) from None
        return copies

    def _copy(self, token: str) -> "AsyncSocketLink":
        options = self._shell.for_copy()
        return AsyncSocketLink(AsyncShell(options), copy_of(self._session, options, token, UNHARMFUL))

    async def attach(self) -> None:
        """Attach to the session, which exists on the server."""
        assert not isinstance(self._session, BaseSession)
        await drive_async(self._session.open(), self._shell.act)

    async def close(self) -> None:
        """End the session. In another process than the link's nothing happens."""
        self._finalizer.detach()
        if self._guard.is_at_home:
            try:
                await drive_async(self._session.close(), self._shell.act)
            finally:
                self._shell.abort()  # if it was cancelled
                self._shell.release()


class Held(Protocol):
    """Sessions that a shell's socket carries."""

    @property
    def format(self) -> Format: ...
    def farewell(self) -> bytes | None:
        """A message that closes them, whose reply nobody reads."""
        ...


def give_back(shell: AsyncShell, session: Held, home: ProcessGuard) -> None:
    """What becomes of a link that nobody closed: the server is told, if that takes no waiting."""
    if home.is_at_home:
        shell.leave(session.farewell(), is_binary=session.format.is_binary)
        shell.release()


class AsyncLocalLink:
    """An environment in this process.

    A plain environment's calls run on the loop itself: nothing else happens meanwhile.
    """

    format = JSON

    def __init__(self, host: EnvironmentHost) -> None:
        self._host = host
        self._guard = ProcessGuard("client")

    async def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        self._guard.require()
        try:
            async with asyncio.timeout(timeout_s):
                return await drive_async(answer_locally(self._host, ask, timeout_s), settle)
        except TimeoutError as error:
            if isinstance(error, EnvTorchError):
                raise
            raise TimedOut(f"{ask.type} was not answered within {timeout_s:g} s") from None

    async def cancel(self) -> None:
        raise Unsupported("a call in this process is taken back by cancelling the task that awaits it")

    async def fork(self, count: int, *, timeout_s: float | None) -> Sequence[AsyncLink]:
        self._guard.require()
        return [AsyncLocalLink(copy) for copy in await drive_async(self._host.fork(count), settle)]

    async def close(self) -> None:
        if self._guard.is_at_home:
            await drive_async(self._host.close(), settle)
