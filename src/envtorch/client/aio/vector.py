"""`AsyncVectorEnv`: the blocking vector's twin, method for method."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from envtorch.client.aio.links import UNHARMFUL, give_back
from envtorch.client.aio.socket import AsyncShell
from envtorch.client.client_options import ClientOptions, GivenOptions
from envtorch.client.guard import ProcessGuard
from envtorch.client.translation import Translation
from envtorch.client.vector_flows import Autoreset, VectorFlows, options_by_place
from envtorch.client.vector_results import Outcome, VectorResult
from envtorch.protocol.flow import drive_async
from envtorch.protocol.reconnect import SocketFlow
from envtorch.shown_urls import shown_url
from envtorch.types import ActT, ObsT, StateT

__all__ = ["AsyncVectorEnv"]

T = TypeVar("T")


class AsyncVectorEnv(Generic[ActT, ObsT, StateT]):
    """`VectorEnv`, awaited. Made by `MyEnv.aio.vector(...)`; it connects on first use.

        async with MyEnv.aio.vector("http://127.0.0.1:8000", 256) as envs:
            await envs.reset(seed=7)
            async for place, outcome in envs.as_completed({place: MyAction(...) for place in range(256)}):
                ...

    Calls on one vector take turns. `VectorEnv` says what each of them does.
    """

    def __init__(
        self,
        translation: Translation[ActT, ObsT, StateT],
        base_url: str,
        count: int,
        *,
        autoreset: Autoreset = "disabled",
        **options: Unpack[GivenOptions],
    ) -> None:
        self._options = ClientOptions.of(base_url, **options)
        self._flows = VectorFlows(translation, self._options, count, autoreset, UNHARMFUL)
        self._shell = AsyncShell(self._options)
        self._guard = ProcessGuard("vector")
        self._turn = asyncio.Lock()
        self._finalizer = weakref.finalize(self, give_back, self._shell, self._flows, self._guard)

    def __len__(self) -> int:
        return self._flows.count

    async def connect(self) -> Self:
        """Open the sessions now, rather than on first use."""
        await self._run(self._flows.open())
        return self

    # All sessions together.

    @overload
    async def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> VectorResult[ObsT]: ...
    @overload
    async def reset(
        self,
        places: Mapping[int, Mapping[str, Any]],
        *,
        seed: int | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> dict[int, Outcome[ObsT]]: ...
    async def reset(
        self,
        places: Mapping[int, Mapping[str, Any]] | None = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> VectorResult[ObsT] | dict[int, Outcome[ObsT]]:
        """Begin an episode in every session, or in some: see `VectorEnv.reset`."""
        if places is None:
            return await self._run(self._flows.reset(seed, options, timeout_s))
        given = options_by_place(places, seed, options)
        return await self._run(self._flows.reset_some(given, timeout_s))

    async def step(
        self, actions: Sequence[ActT] | Mapping[str, Any], *, timeout_s: float | None = None
    ) -> VectorResult[ObsT]:
        """One action for every session, in order, or columns of actions."""
        await self.connect()
        return await self._run(self._flows.step(actions, timeout_s))

    async def step_async(
        self, actions: Sequence[ActT] | Mapping[str, Any], *, timeout_s: float | None = None
    ) -> None:
        """Send the actions; `step_wait` returns their results."""
        await self.connect()
        await self._run(self._flows.start(actions, timeout_s))

    async def step_wait(self) -> VectorResult[ObsT]:
        """The results of `step_async`, when all of them are there."""
        return await self._run(self._flows.wait())

    async def state(self, *, timeout_s: float | None = None) -> list[StateT]:
        """Where every episode stands. Raises the error of a session that cannot tell."""
        await self.connect()
        return await self._run(self._flows.state(timeout_s))

    # Some sessions, each at its own speed.

    async def send(self, actions: Mapping[int, ActT], *, timeout_s: float | None = None) -> None:
        """Send actions to some of the sessions, by number. One that has not answered yet is refused."""
        await self.connect()
        await self._run(self._flows.send(actions, timeout_s))

    async def receive(self, at_least: int = 1) -> dict[int, Outcome[ObsT]]:
        """What has arrived, by session: `at_least` so many results or errors, and whatever is there with
        them."""
        return await self._run(self._flows.receive(at_least))

    async def as_completed(
        self, actions: Mapping[int, ActT] | None = None, *, timeout_s: float | None = None
    ) -> AsyncIterator[tuple[int, Outcome[ObsT]]]:
        """Outcomes as they arrive, each with the number of its session, until none is outstanding.

        `actions` are sent first, as by `send`; more may be sent on the way.
        """
        if actions is not None:
            await self.send(actions, timeout_s=timeout_s)
        while self._flows.outstanding:
            for place, outcome in (await self.receive()).items():
                yield place, outcome

    async def fork(self, place: int, n: int = 1, *, timeout_s: float | None = None) -> list[int]:
        """Copy one session as it is now; the numbers of the copies, which join this vector at its end."""
        await self.connect()
        return await self._run(self._flows.fork(place, n, timeout_s))

    async def end(self, places: Iterable[int]) -> None:
        """End some of the sessions, so that their slots are free. `reset({place: {}})` opens another
        there."""
        await self.connect()
        await self._run(self._flows.end(places))

    async def close(self) -> None:
        """End every session. Only `reset` may be called afterwards: it opens new ones."""
        if self._guard.is_at_home:
            try:
                await self._run(self._flows.close())
            finally:
                self._shell.abort()  # if it was cancelled

    async def _run(self, flow: SocketFlow[T]) -> T:
        self._guard.require()
        async with self._turn:
            return await drive_async(flow, self._shell.act)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} on {shown_url(self._options.base_url)}>"
