"""OpenEnv's `EnvClient`: awaited inside a running loop, blocking outside of one.

EnvTorch's own clients have one colour each; this one has two because the code it is for relies on it.
What OpenEnv does in silence is not done here: a session that is lost stays lost until the next `reset`.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from envtorch.client.guard import ProcessGuard
from envtorch.compat.bootstrap import Bootstrap, start_image, start_space
from envtorch.compat.pending import LoopThread, Pending, is_loop_running, settle
from envtorch.compat.utils import convert_to_ws_url
from envtorch.errors import ConfigurationError
from envtorch.protocol.encoding import encode_value
from envtorch.protocol.requests import Pairing
from envtorch.settings import ServerMode, Settings
from envtorch.shown_urls import shown_url
from envtorch.types import ActT, ObsT, StateT, StepResult

__all__ = ["EnvClient"]

T = TypeVar("T")


class EnvClient(ABC, Generic[ActT, ObsT, StateT]):
    """One session on an environment server, in OpenEnv's manner.

    Subclass it with `_step_payload`, `_parse_result` and `_parse_state`. Inside a running event loop the
    methods are awaited; elsewhere they block. One object keeps to the colour it was first used in.
    """

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        max_message_size_mb: float = 100.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`mode` is "simulation" (the default) or "production"; `OPENENV_CLIENT_MODE` sets it too."""
        if base_url is None and provider is None:
            raise ValueError("an EnvClient needs a base_url, or a provider that starts a server")
        chosen = ServerMode.of(mode) if mode is not None else Settings.from_environ().client_mode
        object.__setattr__(self, "_mode", str(chosen))
        self._base_url = base_url.rstrip("/") if base_url is not None else None
        self._provider = provider
        self._headers = dict(headers or {})
        self._connect_timeout = connect_timeout_s
        self._message_timeout = message_timeout_s
        self._max_message_size = int(max_message_size_mb * 1024 * 1024)
        self._ping_interval_s = websocket_ping_interval_s
        self._ping_timeout_s = websocket_ping_timeout_s
        self._ws: ClientConnection | None = None
        self._lost = False
        self._pairing = Pairing()
        self._colour: str | None = None
        self._loop_thread = LoopThread("openenv-sync-client-loop")
        self._children: list[EnvClient[Any, Any, Any]] = []
        self._home = ProcessGuard("client")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_mode":
            raise AttributeError("a client's mode is chosen when it is made")
        super().__setattr__(name, value)

    @property
    def base_url(self) -> str | None:
        """The server's address; None while its provider has not started it."""
        return self._base_url

    @property
    def _ws_url(self) -> str:
        return f"{convert_to_ws_url(self._base_url or '')}/ws"

    # What a subclass says.

    @abstractmethod
    def _step_payload(self, action: ActT) -> dict[str, Any]: ...

    @abstractmethod
    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]: ...

    @abstractmethod
    def _parse_state(self, payload: dict[str, Any]) -> StateT: ...

    # What a user calls: a value, or something to await.

    def connect(self) -> Any:
        """Open the session now, rather than on first use."""
        return self._dispatch(self._connect_async)

    def disconnect(self) -> Any:
        """Let the session go. A provider's server stays."""
        return self._dispatch(self._disconnect_async)

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        return self._dispatch(lambda: self._reset_async(**options))

    def step(self, action: ActT, **options: Any) -> Any:
        """Take one action."""
        return self._dispatch(lambda: self._step_async(action))

    def state(self) -> Any:
        """Where the episode stands."""
        return self._dispatch(self._state_async)

    def close(self) -> Any:
        """Let the session go, and stop the server if it was started for this client."""
        return self._dispatch(self._close_async, then=self._loop_thread.stop)

    def new_session(self) -> Any:
        """Another client of the same server, closed together with this one."""
        return self._dispatch(self._new_session_async)

    def sync(self) -> Any:
        """A client that always blocks, also inside a running loop."""
        from envtorch.compat.sync_client import SyncEnvClient

        return SyncEnvClient(self)

    @classmethod
    def from_docker_image(cls, image: str, provider: Any = None, **options: Any) -> Bootstrap[Self]:
        """A client of a container started for it; await it, or call `.sync()`."""
        return Bootstrap(lambda: start_image(cls, image, provider, options))

    @classmethod
    def from_env(
        cls, repo_id: str, *, use_docker: bool = True, provider: Any = None, **options: Any
    ) -> Bootstrap[Self]:
        """A client of a Hugging Face Space's environment, run here; await it, or call `.sync()`."""
        return Bootstrap(lambda: start_space(cls, repo_id, use_docker, provider, options))

    from_hub = from_env

    # The colour of a call.

    def _dispatch(
        self, start: Callable[[], Coroutine[Any, Any, T]], then: Callable[[], None] | None = None
    ) -> Any:
        self._home.require()

        def blocking() -> T:
            self._keep_colour("blocking")
            try:
                return self._loop_thread.run(start())
            finally:
                if then is not None:
                    then()

        def awaited() -> Coroutine[Any, Any, T]:
            self._keep_colour("awaited")
            return start()

        return Pending(awaited, blocking) if is_loop_running() else blocking()

    def _keep_colour(self, colour: str) -> None:
        """A socket belongs to one loop, so a client cannot change its mind."""
        if getattr(self, "_colour", None) not in (None, colour):
            raise RuntimeError(f"this client is {self._colour}; make another one to have it {colour}")
        self._colour = colour

    # The session itself.

    async def _connect_async(self) -> Self:
        if self._ws is not None:
            return self
        if self._base_url is None:
            self._start_provider()
        url = self._ws_url
        try:
            self._ws = await connect(
                url,
                open_timeout=self._connect_timeout,
                max_size=self._max_message_size,
                additional_headers=self._headers,
                proxy=None if _is_local(url) else True,
                ping_interval=self._ping_interval_s,
                ping_timeout=self._ping_timeout_s,
            )
        except InvalidURI as error:
            why = shown_url(str(error))
            raise ConfigurationError(f"{shown_url(url)!r} is not the address of a server: {why}") from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise ConnectionError(shown_url(f"Failed to connect to {url}: {error}")) from error
        self._pairing = Pairing()
        self._lost = False
        return self

    def _start_provider(self) -> None:
        from envtorch.compat.bootstrap import start_provider

        self._base_url = start_provider(self._provider)

    async def _ensure_connected(self, *, begins: bool = False) -> None:
        if self._lost and not begins:
            raise ConnectionError("the session is lost, and its episode with it: call reset() for another")
        if self._ws is None:
            await self._connect_async()

    async def _reset_async(self, **options: Any) -> StepResult[ObsT]:
        answer = await self._send_and_receive({"type": "reset", "data": options})
        return self._parse_result(answer.get("data", {}))

    async def _step_async(self, action: ActT) -> StepResult[ObsT]:
        answer = await self._send_and_receive({"type": "step", "data": self._step_payload(action)})
        return self._parse_result(answer.get("data", {}))

    async def _state_async(self) -> StateT:
        answer = await self._send_and_receive({"type": "state"})
        return self._parse_state(answer.get("data", {}))

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        await self._send(message)
        answer = await self._receive()
        if answer.get("type") == "error":
            data = answer.get("data", {})
            raise RuntimeError(f"Server error: {data.get('message')} (code: {data.get('code')})")
        return answer

    async def _send(self, message: dict[str, Any]) -> None:
        await self._ensure_connected(begins=message.get("type") == "reset")
        assert self._ws is not None
        self._pairing.asked()
        with suppress(ConnectionClosed):  # why it closed may still be there to read
            await self._ws.send(encode_value(message).decode())

    async def _receive(self) -> dict[str, Any]:
        assert self._ws is not None
        try:
            async with asyncio.timeout(self._message_timeout):
                while True:
                    frame = await self._ws.recv()
                    if self._pairing.answers_the_last():  # not the late answer of a call that gave up
                        answer: dict[str, Any] = json.loads(frame)
                        return answer
        except ConnectionClosed as error:
            self._ws = None
            self._lost = True
            raise ConnectionError(f"the connection to the server is gone: {error}") from error

    async def _new_session_async(self) -> "EnvClient[Any, Any, Any]":
        if self._base_url is None:
            self._start_provider()
        child = type(self)(
            base_url=self._base_url,
            connect_timeout_s=self._connect_timeout,
            message_timeout_s=self._message_timeout,
            headers=self._headers,
        )
        await child._connect_async()
        self._children.append(child)
        return child

    async def _disconnect_async(self) -> None:
        socket, self._ws = self._ws, None
        if socket is not None:
            with suppress(ConnectionClosed):
                await socket.send('{"type":"close"}')
            await socket.close()

    async def _close_async(self) -> None:
        try:
            for child in self._children:
                await child._close_async()
            self._children.clear()
            await self._disconnect_async()
        finally:
            if self._provider is not None:
                stop = getattr(self._provider, "stop_container", None) or self._provider.stop
                await asyncio.to_thread(stop)

    async def __aenter__(self) -> Self:
        await settle(self.connect())
        return self

    async def __aexit__(self, *_: object) -> None:
        await settle(self.close())

    def __enter__(self) -> Self:
        if is_loop_running():
            raise TypeError("inside a running loop: use 'async with', or .sync()")
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104
