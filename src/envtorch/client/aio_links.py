"""Async links: how an async client's questions reach an environment, near or far."""

import asyncio
from contextlib import suppress
from typing import Any, Protocol, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from envtorch.client.options import ClientOptions
from envtorch.env import Environment
from envtorch.errors import ConfigurationError, ConnectFailed, EnvTorchError, SessionLost, TimedOut
from envtorch.protocol.client import CLOSE, Pairing, websocket_url
from envtorch.protocol.codec import Codec
from envtorch.protocol.flow import drive_async, settle
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.messages import Close, Mcp, decode
from envtorch.protocol.wire import Answer, Ask, error_reply

__all__ = ["AsyncLink", "AsyncLocalLink", "AsyncSocketLink"]


class AsyncLink(Protocol):
    """Carries one question at a time, and brings back its answer."""

    async def exchange(self, ask: Ask, *, timeout_s: float) -> Answer: ...

    async def close(self) -> None: ...


class AsyncSocketLink:
    """One session over one WebSocket, on OpenEnv's wire."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._pairing = Pairing()

    @classmethod
    async def open(cls, options: ClientOptions) -> Self:
        url = websocket_url(options.base_url)
        try:
            socket = await connect(
                url,
                open_timeout=options.connect_timeout_s,
                max_size=options.max_message_bytes,
                additional_headers=dict(options.headers),
                compression=None,
                proxy=None,
            )
        except InvalidURI as error:
            raise ConfigurationError(f"{url!r} is not the address of a server: {error}") from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise ConnectFailed(f"Failed to connect to {url}: {error}") from error
        return cls(socket)

    async def exchange(self, ask: Ask, *, timeout_s: float) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                self._pairing.asked()
                with suppress(ConnectionClosed):  # why it closed may still be there to read
                    await self._socket.send(ask.frame(), text=True)
                while True:
                    frame = await self._socket.recv(decode=False)
                    if self._pairing.answers_the_last():
                        return Answer.read(frame)
        except TimeoutError:
            raise TimedOut(f"{ask.type} was not answered within {timeout_s:g} s") from None
        except ConnectionClosed as error:
            raise SessionLost(f"the connection to the server is gone: {error}") from error

    async def close(self) -> None:
        with suppress(ConnectionClosed):
            await self._socket.send(CLOSE.frame(), text=True)
        await self._socket.close()


class AsyncLocalLink:
    """An environment in this process, behind the same codec and the same rules as a served one.

    A plain environment's calls run on the loop itself: nothing else happens meanwhile.
    """

    def __init__(self, environment: Environment[Any, Any, Any], codec: Codec[Any, Any, Any]) -> None:
        self._host = EnvironmentHost(environment, codec)

    async def exchange(self, ask: Ask, *, timeout_s: float) -> Answer:
        try:
            request = decode(ask.frame())
            assert not isinstance(request, Close | Mcp)
            async with asyncio.timeout(timeout_s):
                reply = await drive_async(self._host.reply(request, strict=True), settle)
        except TimeoutError:
            raise TimedOut(f"{ask.type} was not answered within {timeout_s:g} s") from None
        except EnvTorchError as error:
            reply = error_reply(error)
        return Answer.read(reply.frame())

    async def close(self) -> None:
        await drive_async(self._host.close(), settle)
