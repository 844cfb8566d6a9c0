"""The async link that survives its socket: `resuming`'s twin."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from envtorch.client.aio_links import AsyncLink, AsyncSocketLink, connect_socket, cut
from envtorch.client.blocking_socket import Cut
from envtorch.client.options import ClientOptions
from envtorch.client.resuming import ANSWER_MARGIN_S, FAREWELL_S, new_backoff, one_try
from envtorch.errors import ConnectFailed, EnvTorchError, TimedOut
from envtorch.protocol.client import ask_fork
from envtorch.protocol.extended import FORMATS
from envtorch.protocol.flow import drive_async
from envtorch.protocol.formats import Format
from envtorch.protocol.resume import Resumable
from envtorch.protocol.wire import Answer, Ask

__all__ = ["AsyncResumingLink", "open_link"]


async def open_link(options: ClientOptions) -> AsyncLink:
    """A session on the server, over the best wire that it speaks."""
    deadline = time.monotonic() + options.connect_timeout_s
    backoff = new_backoff()
    while True:
        try:
            socket = await connect_socket(options, timeout_s=one_try(deadline, options))
            break
        except ConnectFailed as error:
            if not error.details.get("was_cut") or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(backoff.next_s())
    format = FORMATS.get(socket.subprotocol or "")
    if format is None:
        return AsyncSocketLink(socket, options)
    link = AsyncResumingLink(socket, options, Resumable(format, wait_s=options.wait_s))
    try:
        await link.open()
    except BaseException:
        link.abandon()
        raise
    return link


class AsyncResumingLink:
    """One session on the extended wire, over as many sockets as it takes."""

    def __init__(self, socket: ClientConnection | None, options: ClientOptions, session: Resumable) -> None:
        self._socket = socket
        self._options = options
        self._session = session
        self._is_greeted = False
        self._asked: int | None = None

    @property
    def format(self) -> Format:
        return self._session.format

    async def open(self) -> None:
        """Have the session opened: until then there is none to lose."""
        deadline = time.monotonic() + self._options.connect_timeout_s + self._options.wait_s
        async with asyncio.timeout(deadline - time.monotonic()):
            await self._persist(lambda: self._connected(deadline), deadline)

    async def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        patience = self._options.message_timeout_s if timeout_s is None else timeout_s + ANSWER_MARGIN_S
        deadline = time.monotonic() + patience
        id, frame = self._session.request(ask, timeout_s)
        self._asked = id
        try:
            async with asyncio.timeout(patience):
                return await self._persist(lambda: self._attempt(id, frame, deadline), deadline)
        except TimeoutError as error:
            if isinstance(error, EnvTorchError):
                raise
            raise TimedOut(f"{ask.type} was not answered within {patience:g} s") from None
        finally:
            self._asked = None

    async def cancel(self) -> None:
        if self._asked is not None and self._socket is not None:
            with suppress(ConnectionClosed):
                await self._socket.send(self._session.withdrawal(self._asked), text=not self.format.is_binary)

    async def fork(self, count: int, *, timeout_s: float | None) -> Sequence[AsyncLink]:
        asking = ask_fork(count, self.format)
        tokens = await drive_async(asking, lambda ask: self.exchange(ask, timeout_s=timeout_s))
        copies = [
            AsyncResumingLink(None, self._options, Resumable(self.format, token=token)) for token in tokens
        ]
        try:
            for copy in copies:
                await copy.open()  # now: until somebody holds it, its lease runs
        except BaseException:
            await asyncio.gather(*(copy.close() for copy in copies), return_exceptions=True)
            raise
        return copies

    async def close(self) -> None:
        """End the session. A line that fails just now is given a moment; then the session's grace ends it."""
        deadline = time.monotonic() + FAREWELL_S
        id, frame = self._session.farewell()
        with suppress(EnvTorchError, TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._persist(lambda: self._attempt(id, frame, deadline), deadline)
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    # Trying, and trying again.

    async def _persist(self, attempt: Callable[[], Awaitable[Answer]], deadline: float) -> Answer:
        """What `attempt` gives, over as many sockets as it takes and the time allows."""
        backoff = new_backoff()
        give_up = None
        while True:
            try:
                return await attempt()
            except (Cut, ConnectFailed) as error:
                self.abandon()
                now = time.monotonic()
                give_up = give_up or now + self._options.reconnect_s
                delay = backoff.next_s()
                if now + delay >= min(give_up, deadline):
                    raise self._session.gone(error) from error
                await asyncio.sleep(delay)

    async def _attempt(self, id: int, frame: bytes, deadline: float) -> Answer:
        await self._connected(deadline)
        return await self._ask(id, frame)

    async def _connected(self, deadline: float) -> Answer:
        """See to it that there is a socket, and that it has the session."""
        if self._socket is None:
            self._socket = await connect_socket(self._options, timeout_s=one_try(deadline, self._options))
            self._is_greeted = False
        if not self._is_greeted:
            id, frame = self._session.greeting()
            self._session.greeted(await self._ask(id, frame))
            self._is_greeted = True
        return Answer("session")

    async def _ask(self, id: int, frame: bytes) -> Answer:
        socket = self._socket
        assert socket is not None
        try:
            await socket.send(frame, text=not self.format.is_binary)
            while True:
                answer = self._session.find(id, await socket.recv(decode=False))
                if answer is not None:
                    return answer
        except ConnectionClosed as error:
            raise cut(error) from error

    def abandon(self) -> None:
        """Let the socket go; the session waits for another one, or for its end."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()
