"""The async pool: the blocking one's twin."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from envtorch.errors import EnvTorchError
from envtorch.pool.leases import OUTAGE_S, Lease, Search, granted_async
from envtorch.pool.outcomes import Outcome, Playing, episode
from envtorch.pool.roster import Batch, Replica
from envtorch.pool.server_pool import ServerPool
from envtorch.protocol.flow import drive_async

__all__ = ["AsyncEnvPool"]

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
Errors = tuple[type[EnvTorchError], ...]


class AsyncConnectable(Protocol):
    """What a pool needs of an async client."""

    async def connect(self) -> Any: ...
    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=AsyncConnectable)


class AsyncEnvPool(ServerPool[ClientT]):
    """N sessions over M servers, which are replaced when they die; awaited.

        async with AsyncEnvPool(EchoEnv.aio, "docker", "echo-env:latest", replicas=4) as pool:
            async with pool.session() as env:       # waits while every session is taken
                await env.reset()
            async for outcome in pool.run(play, tasks):
                ...

    The arguments are those of `EnvPool`.
    """

    async def open(self) -> Self:
        """Start the servers. A session can be asked for at once: it waits for the first to be ready."""
        self._keeper.open()
        return self

    async def close(self) -> None:
        """Stop every server, even if this task is cancelled meanwhile. In a process that inherited the pool
        over `os.fork`, nothing happens."""
        if not self._home.is_at_home:
            return
        closing = asyncio.ensure_future(asyncio.to_thread(self._keeper.close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])
            raise

    @asynccontextmanager
    async def session(
        self, *, timeout_s: float | None = None, outage_s: float = 0.0
    ) -> AsyncIterator[ClientT]:
        """A session on the server with the most room. Waits in a queue while all are taken. A server that
        cannot be reached is passed over, and so is a second one.

        Raises `TimedOut` if its turn does not come in time, `CapacityReached` when too many wait, why the
        third server could not be reached, and the reason itself when no server could be started for
        `outage_s`; at once in a pool that has never had one.
        """
        client, held = await self._connected(Search(timeout_s, Batch(outage_s)))
        async with held:
            yield client

    async def _connected(self, search: Search) -> tuple[ClientT, AsyncExitStack]:
        """A client that is connected, on the first server that can be reached, and what gives it back."""
        while True:
            async with AsyncExitStack() as held:
                lease = held.enter_context(self._leased(await self._acquire(search)))
                client = self._client_of(lease)
                held.push_async_callback(client.close)
                try:
                    await client.connect()
                except EnvTorchError as error:
                    if not search.goes_on(lease.replica, error):
                        raise
                    lease.suspect()
                else:
                    return client, held.pop_all()

    async def lease(self) -> Lease:
        """A place on the server with the most room, for a client that another process makes of
        `lease.replica.url`. Its `end` gives it back."""
        return Lease(self._keeper, await self._acquire(Search(None, Batch(OUTAGE_S))))

    async def run(
        self,
        play: Callable[[ClientT, ItemT], Awaitable[ResultT]],
        items: Iterable[ItemT],
        *,
        attempts: int = 3,
        retry_on: Errors = (),
        outage_s: float = OUTAGE_S,
    ) -> AsyncIterator[Outcome[ItemT, ResultT]]:
        """Play an episode for each item, as many at once as there are sessions; outcomes as they come.

        Every item has exactly one outcome. An episode that is lost to the infrastructure is played again from
        its beginning, up to `attempts` times in all; any other error is its outcome. A step of which the
        server says that it timed out or ran out of memory is the policy's: where it is not,
        `retry_on=(TimedOut, OutOfResources)` plays those again, too.

        While the pool has no server and can start none, episodes wait; after `outage_s` of that they fail.
        Left early, `run` cancels the episodes that have not ended.
        """
        waiting: set[asyncio.Task[Outcome[ItemT, ResultT]]] = set()
        try:
            for item in items:
                waiting.add(asyncio.create_task(self._play(play, item, attempts, retry_on, outage_s)))
                if len(waiting) >= self.capacity:  # no item is taken before there is room for it
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for episode in done:
                        yield episode.result()
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for episode in done:
                    yield episode.result()
        finally:
            for episode in waiting:
                episode.cancel()
            if waiting:
                await asyncio.wait(waiting)

    async def _play(
        self,
        play: Callable[[ClientT, ItemT], Awaitable[ResultT]],
        item: ItemT,
        limit: int,
        retry_on: Errors,
        outage_s: float,
    ) -> Outcome[ItemT, ResultT]:
        async def attempt(playing: Playing[ResultT]) -> None:
            async with self.session(outage_s=outage_s) as client:
                playing.over(await play(client, item))

        return await drive_async(episode(item, limit, retry_on), attempt)

    async def _acquire(self, search: Search) -> Replica:
        self._home.require()
        return await granted_async(self._keeper, search)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
