"""The async client: the blocking one's twin, method for method."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from envtorch.client.aio_links import AsyncLink, AsyncLocalLink
from envtorch.client.aio_resuming import open_link
from envtorch.client.hooks import Hooks
from envtorch.client.launch import Starter, launch_async, plan, plan_hub
from envtorch.client.links import make_host
from envtorch.client.options import ClientOptions, GivenOptions, Owner
from envtorch.env import EnvironmentSource
from envtorch.protocol.client import Asking, ask_reset, ask_state, ask_step, require_count
from envtorch.protocol.flow import drive_async
from envtorch.protocol.formats import Format
from envtorch.types import ActT, ObsT, StateT, StepResult

if TYPE_CHECKING:
    from envtorch.client.sync import EnvClient

__all__ = ["AsyncEnvClient", "AsyncFactory"]

T = TypeVar("T")


class AsyncEnvClient(Generic[ActT, ObsT, StateT]):
    """One session on an environment server, awaited. Made by `MyEnv.aio(...)`.

    async with MyEnv.aio("http://127.0.0.1:8000") as env:
        result = await env.reset(seed=7)

    Calls on one client take turns; open one client per session that should run at the same time.
    """

    def __init__(
        self,
        options: ClientOptions,
        hooks: Hooks[ActT, ObsT, StateT],
        *,
        link: AsyncLink | None = None,
        provider: Owner | None = None,
    ) -> None:
        self._options = options
        self._hooks = hooks
        self._link = link
        self._provider = provider
        self._turn = asyncio.Lock()

    @property
    def base_url(self) -> str:
        return self._options.base_url

    async def connect(self) -> Self:
        """Open the session now, rather than on first use."""
        if self._link is None:
            self._link = await open_link(self._options)
        return self

    async def reset(self, *, timeout_s: float | None = None, **options: Any) -> StepResult[ObsT]:
        """Begin an episode: `seed`, `episode_id`, and whatever the environment's `reset` takes."""
        return await self._run(lambda format: ask_reset(self._hooks, options, format), timeout_s)

    async def step(self, action: ActT, *, timeout_s: float | None = None) -> StepResult[ObsT]:
        """Take one action. Past `timeout_s` a server of ours answers `TimedOut`, and says whether the
        session can go on; any other server is no longer waited for."""
        return await self._run(lambda format: ask_step(self._hooks, action, format), timeout_s)

    async def state(self, *, timeout_s: float | None = None) -> StateT:
        """Where the episode stands."""
        return await self._run(lambda _: ask_state(self._hooks), timeout_s)

    async def fork(self, n: int = 1, *, timeout_s: float | None = None) -> list[Self]:
        """Copies of this session as it is now, each a client on a session of its own.

        The environment is copied between two calls: by its own `fork()`, else by `copy.deepcopy`. Raises
        `Unsupported` when that cannot be done, and `CapacityReached` when there is no room for all.
        A copy is yours to close, and outlives this client; a server started for this client does not.
        """
        require_count(n)
        async with self._turn:
            await self.connect()
            assert self._link is not None
            links = await self._link.fork(n, timeout_s=timeout_s)
        return [type(self)(self._options, self._hooks, link=link) for link in links]

    async def cancel(self) -> None:
        """Take back the call that another task awaits: it raises `Cancelled` there, and says in its details
        whether the session is still usable. Without such a call nothing happens."""
        if self._link is not None:
            await self._link.cancel()

    async def close(self) -> None:
        """End the session, and stop the server if it was started for this client."""
        link, self._link = self._link, None
        try:
            if link is not None:
                await link.close()
        finally:
            if self._provider is not None:
                await asyncio.to_thread(self._provider.stop_container)

    async def _run(self, flow: Callable[[Format], Asking[T]], timeout_s: float | None) -> T:
        async with self._turn:
            await self.connect()
            link = self._link
            assert link is not None
            return await drive_async(flow(link.format), lambda ask: link.exchange(ask, timeout_s=timeout_s))

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
        return f"<{type(self).__name__} of {type(self._hooks).__name__} {self._options.base_url}>"


class AsyncFactory(Generic[ActT, ObsT, StateT]):
    """Makes the async twins of one client class."""

    def __init__(self, client: "type[EnvClient[ActT, ObsT, StateT]]") -> None:
        self._client = client

    def __call__(
        self, base_url: str, *, provider: Owner | None = None, **options: Unpack[GivenOptions]
    ) -> AsyncEnvClient[ActT, ObsT, StateT]:
        """An async client of the server at `base_url`."""
        # The blocking client connects on first use, which never comes: here it only translates.
        twin = self._client(base_url, **options)
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
        twin = self._client("local://")
        codec = self._client._codec_of_class()
        link = AsyncLocalLink(make_host(environment, self._client.environment, codec))
        return AsyncEnvClient(twin._options, twin, link=link)
