"""Async links: how an async client's questions reach an environment, near or far."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from envtorch.client.blocking_socket import Cut, refused
from envtorch.client.links import NO_FORK
from envtorch.client.options import ClientOptions
from envtorch.errors import ConfigurationError, ConnectFailed, EnvTorchError, TimedOut, Unsupported
from envtorch.protocol.client import CLOSE, Pairing, websocket_url
from envtorch.protocol.flow import drive_async, settle
from envtorch.protocol.formats import JSON, Format
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.messages import Close, Mcp, decode
from envtorch.protocol.tools import answer_tools
from envtorch.protocol.wire import Answer, Ask, error_reply

__all__ = ["AsyncLink", "AsyncLocalLink", "AsyncSocketLink", "connect_socket", "cut"]


class AsyncLink(Protocol):
    """Carries one question at a time, and brings back its answer."""

    @property
    def format(self) -> Format:
        """What questions are encoded in."""

    async def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        """The answer, within the caller's time or, without one, the client's usual patience."""
        ...

    async def cancel(self) -> None:
        """Take the question back that is being asked, if one is."""

    async def fork(self, count: int, *, timeout_s: float | None) -> Sequence["AsyncLink"]:
        """Links to that many copies of this session, all or none."""
        ...

    async def close(self) -> None: ...


async def connect_socket(options: ClientOptions, *, timeout_s: float) -> ClientConnection:
    """A socket to the server, on the best wire that it speaks."""
    url = websocket_url(options.base_url)
    try:
        return await connect(
            url,
            open_timeout=timeout_s,
            close_timeout=1.0,
            max_size=options.max_message_bytes,
            additional_headers=options.all_headers,
            subprotocols=[Subprotocol(name) for name in options.subprotocols] or None,
            ping_interval=options.heartbeat_s,
            ping_timeout=options.heartbeat_s,
            compression=None,
            proxy=None,
        )
    except InvalidURI as error:
        raise ConfigurationError(f"{url!r} is not the address of a server: {error}") from error
    except (ConnectionRefusedError, OSError) as error:
        was_cut = isinstance(error, ConnectionResetError | TimeoutError)
        raise ConnectFailed(f"Failed to connect to {url}: {error}", was_cut=was_cut) from error
    except (InvalidHandshake, EOFError) as error:
        raise refused(url, error) from error


def cut(error: ConnectionClosed) -> Cut:
    return Cut(f"the connection to the server is gone: {error}")


class AsyncSocketLink:
    """One session over one WebSocket, on OpenEnv's wire. When the socket goes, the session is lost."""

    format = JSON

    def __init__(self, socket: ClientConnection, options: ClientOptions) -> None:
        self._socket = socket
        self._patience_s = options.message_timeout_s
        self._pairing = Pairing()

    async def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        limit = self._patience_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit):
                self._pairing.asked()
                with suppress(ConnectionClosed):  # why it closed may still be there to read
                    await self._socket.send(ask.frame(), text=True)
                while True:
                    frame = await self._socket.recv(decode=False)
                    if self._pairing.answers_the_last():
                        return Answer.read(frame)
        except TimeoutError:
            raise TimedOut(f"{ask.type} was not answered within {limit:g} s") from None
        except ConnectionClosed as error:
            raise cut(error) from error

    async def cancel(self) -> None:
        raise Unsupported("OpenEnv's wire cannot take a request back")

    async def fork(self, count: int, *, timeout_s: float | None) -> Sequence[AsyncLink]:
        raise Unsupported(NO_FORK)

    async def close(self) -> None:
        with suppress(ConnectionClosed):
            await self._socket.send(CLOSE.frame(), text=True)
        await self._socket.close()


class AsyncLocalLink:
    """An environment in this process, behind the same codec and the same rules as a served one.

    A plain environment's calls run on the loop itself: nothing else happens meanwhile.
    """

    format = JSON

    def __init__(self, host: EnvironmentHost) -> None:
        self._host = host

    async def exchange(self, ask: Ask, *, timeout_s: float | None) -> Answer:
        try:
            request = decode(ask.frame())
            assert not isinstance(request, Close)
            async with asyncio.timeout(timeout_s):
                if isinstance(request, Mcp):
                    flow = answer_tools(self._host, request)
                else:
                    flow = self._host.reply(request, strict=True, timeout_s=timeout_s)
                reply = await drive_async(flow, settle)
        except TimeoutError as error:
            if isinstance(error, EnvTorchError):
                raise
            raise TimedOut(f"{ask.type} was not answered within {timeout_s:g} s") from None
        except EnvTorchError as error:
            reply = error_reply(error)
        return Answer.read(reply.frame())

    async def cancel(self) -> None:
        raise Unsupported("a call in this process is taken back by cancelling the task that awaits it")

    async def fork(self, count: int, *, timeout_s: float | None) -> Sequence[AsyncLink]:
        return [AsyncLocalLink(copy) for copy in await drive_async(self._host.fork(count), settle)]

    async def close(self) -> None:
        await drive_async(self._host.close(), settle)
