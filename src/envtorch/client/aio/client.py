"""The async client: the blocking one's twin, method for method."""

import asyncio
import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from envtorch.client.aio.links import AsyncLink, AsyncLocalLink, open_link
from envtorch.client.client_options import ClientOptions, GivenOptions, Owner, require_owner
from envtorch.client.guard import ProcessGuard
from envtorch.client.launch import Starter, launch_async, plan, plan_hub
from envtorch.client.local_environment import host_maker
from envtorch.client.translation import Translation, ask_reset, ask_state, ask_step
from envtorch.env import EnvironmentSource
from envtorch.errors import ClientClosed, EnvTorchError
from envtorch.protocol.arguments import timeout_of
from envtorch.protocol.flow import drive_async
from envtorch.protocol.formats import Format
from envtorch.protocol.host import EnvironmentHost
from envtorch.protocol.requests import Asking, copies_of
from envtorch.protocol.tool_requests import ask_tools
from envtorch.shown_urls import shown_url
from envtorch.types import ActT, ObsT, StateT, StepResult, Tool

if TYPE_CHECKING:
    from envtorch.client.aio.vector import AsyncVectorEnv
    from envtorch.client.blocking.client import EnvClient
    from envtorch.client.vector_flows import Autoreset

__all__ = ["AsyncEnvClient", "AsyncFactory"]

T = TypeVar("T")


class AsyncEnvClient(Generic[ActT, ObsT, StateT]):
    """One session on an environment server, awaited. Made by `MyEnv.aio(...)`.

    async with MyEnv.aio("http://127.0.0.1:8000") as env:
        result = await env.reset(seed=7)

    Calls on one client take turns; open one client per session that should run at the same time. Lost and
    closed sessions, dropped clients and `os.fork` are as in `EnvClient`.
    """

    def __init__(
        self,
        options: ClientOptions,
        translation: Translation[ActT, ObsT, StateT],
        *,
        link: AsyncLink | None = None,
        provider: Owner | None = None,
    ) -> None:
        self._options = options
        self._translation = translation
        self._link = link
        require_owner(provider)
        self._provider = provider
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._home = ProcessGuard("client")
        self._make_host: Callable[[], EnvironmentHost] | None = None
        """Makes the environment of a client without a server."""

    @property
    def base_url(self) -> str:
        return self._options.base_url

    async def connect(self) -> Self:
        """Open the session now, rather than on first use."""
        async with self._turn:
            await self._connected(reopen=True)
        return self

    async def _connected(self, *, reopen: bool = False) -> AsyncLink:
        """The link to the session. After `close` there is none, unless it may `reopen` one."""
        if self._link is None:
            if self._is_closed and not reopen:
                raise ClientClosed("the client was closed; reset() opens a new session")
            self._link = await self._open()
            self._is_closed = False
        return self._link

    async def _open(self) -> AsyncLink:
        if self._make_host is not None:
            return AsyncLocalLink(self._make_host())
        return await open_link(self._options)

    async def reset(self, *, timeout_s: float | None = None, **options: Any) -> StepResult[ObsT]:
        """Begin an episode: `seed`, `episode_id`, and whatever the environment's `reset` takes.

        When the session was lost or closed, this opens a new one.
        """
        asking = partial(ask_reset, self._translation, options)
        return await self._run(asking, timeout_s, reopen=True)

    async def step(self, action: ActT, *, timeout_s: float | None = None) -> StepResult[ObsT]:
        """Take one action. Past `timeout_s` an EnvTorch server answers `TimedOut`, and says whether the
        session can go on; one that says nothing is waited for 5 s longer. Any other server is not."""
        return await self._run(lambda format: ask_step(self._translation, action, format), timeout_s)

    async def state(self, *, timeout_s: float | None = None) -> StateT:
        """Where the episode stands."""
        return await self._run(lambda _: ask_state(self._translation), timeout_s)

    async def list_tools(self, *, timeout_s: float | None = None) -> list[Tool]:
        """Which tools the environment has. Raises `Unsupported` if it has none."""
        return await self._run(ask_tools, timeout_s)

    async def fork(self, n: int = 1, *, timeout_s: float | None = None) -> list[Self]:
        """Copies of this session as it is now, each a client on a session of its own.

        The environment is copied between two calls: by its own `fork()`, else by `copy.deepcopy`. Raises
        `Unsupported` when that cannot be done, and `CapacityReached` when there is no room for all.
        Close each copy; it outlives this client, but not a server that was started for this client.
        """
        count, limit_s = copies_of(n), timeout_of(timeout_s)
        async with self._turn:
            link = await self._connected()
            links = await link.fork(count, timeout_s=limit_s)
        return [self._on(link) for link in links]

    def _on(self, link: AsyncLink) -> Self:
        """This client, on another session."""
        client = copy.copy(self)
        client._link, client._provider, client._turn = link, None, asyncio.Lock()
        return client

    async def cancel(self) -> None:
        """Take back the call that another task awaits: it raises `Cancelled` there, and says in its details
        whether the session is still usable. Without such a call nothing happens."""
        if self._link is not None:
            await self._link.cancel()

    async def close(self) -> None:
        """End the session, and stop the server if it was started for this client. A call that another task
        awaits is cancelled first."""
        if self._link is not None and self._turn.locked():
            with suppress(EnvTorchError):
                await self._link.cancel()
        async with self._turn:
            link, self._link = self._link, None
            self._is_closed = True
            try:
                if link is not None:
                    await link.close()
            finally:
                if self._provider is not None and self._home.is_at_home:
                    await asyncio.to_thread(self._provider.stop_container)

    async def _run(
        self, flow: Callable[[Format], Asking[T]], timeout_s: float | None, *, reopen: bool = False
    ) -> T:
        limit_s = timeout_of(timeout_s)
        async with self._turn:
            link = await self._connected(reopen=reopen)
            return await drive_async(flow(link.format), lambda ask: link.exchange(ask, timeout_s=limit_s))

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        kind = type(self._translation).__name__
        return f"<{type(self).__name__} of {kind} {shown_url(self._options.base_url)}>"


class AsyncFactory(Generic[ActT, ObsT, StateT]):
    """Makes the async twins of one client class."""

    def __init__(self, client: "type[EnvClient[ActT, ObsT, StateT]]") -> None:
        self.client = client
        """The class whose twins these are."""

    def __call__(
        self, base_url: str, *, provider: Owner | None = None, **options: Unpack[GivenOptions]
    ) -> AsyncEnvClient[ActT, ObsT, StateT]:
        """An async client of the server at `base_url`."""
        # The blocking client connects on first use; this one is never used, except to translate.
        twin = self.client(base_url, **options)
        return AsyncEnvClient(twin._options, twin, provider=provider)

    async def from_docker_image(
        self, image: str, provider: Starter | str | None = None, **options: Any
    ) -> AsyncEnvClient[ActT, ObsT, StateT]:
        """Start a server from `image` and make a client of it; `close` stops it again."""
        server = await launch_async(lambda: plan(image, provider, options))
        return self(server.base_url, provider=server.owner, **server.client_options)

    async def from_hub(
        self, repo_id: str, *, use_docker: bool = True, provider: Starter | str | None = None, **options: Any
    ) -> AsyncEnvClient[ActT, ObsT, StateT]:
        """Start a Hugging Face Space on this machine: its image in a container, or its sources with uv."""
        server = await launch_async(lambda: plan_hub(repo_id, use_docker, provider, options))
        return self(server.base_url, provider=server.owner, **server.client_options)

    def local(self, environment: EnvironmentSource | None = None) -> AsyncEnvClient[ActT, ObsT, StateT]:
        """An async client of an environment in this process."""
        twin = self.client("local://")
        codec = self.client._codec_of_class()
        client = AsyncEnvClient(twin._options, twin)
        client._make_host = host_maker(environment, self.client.environment, codec)
        return client

    def vector(
        self,
        base_url: str,
        count: int,
        *,
        autoreset: "Autoreset" = "disabled",
        **options: Unpack[GivenOptions],
    ) -> "AsyncVectorEnv[ActT, ObsT, StateT]":
        """That many sessions, stepped together over one socket; see `AsyncVectorEnv`."""
        from envtorch.client.aio.vector import AsyncVectorEnv

        return AsyncVectorEnv(
            self.client(base_url, **options), base_url, count, autoreset=autoreset, **options
        )
