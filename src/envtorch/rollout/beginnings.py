"""The beginning that the rollouts of a group share: one reset and its forks, or as many resets."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from envtorch.errors import CapacityReached, ConnectFailed, Draining, EnvTorchError, SessionLost, Unsupported
from envtorch.pool.outcomes import is_infrastructure
from envtorch.rollout.trajectories import Task
from envtorch.rollout.transcripts import Transcript
from envtorch.types import StepResult

__all__ = ["Beginning", "RolloutClient", "SessionPlaces", "Sharing", "SharingCosts", "close_quietly"]

logger = logging.getLogger(__name__)

Sharing = Literal["fork", "reset"]


class RolloutClient(Protocol):
    """What rollouts need of an async client."""

    @property
    def base_url(self) -> str:
        """The address of its server."""

    async def reset(self, *, timeout_s: float | None = None, **options: Any) -> StepResult[Any]: ...
    async def step(self, action: Any, *, timeout_s: float | None = None) -> StepResult[Any]: ...
    async def state(self, *, timeout_s: float | None = None) -> Any: ...
    async def fork(self, n: int = 1, *, timeout_s: float | None = None) -> Any: ...
    async def close(self) -> None: ...


class SessionPlaces(Protocol):
    """Opens sessions."""

    async def open(self, number: int, attempt: int, lost_at: Sequence[str]) -> RolloutClient:
        """A client of a new session of the order `number`, the `attempt`-th of that order.

        `lost_at` has the addresses where it was lost before: it is opened at another one if there is one.
        """

    def avoid(self, address: str) -> None:
        """Open sessions elsewhere for a while, if there is another address: this one takes none."""


class Closeable(Protocol):
    """What has a session open."""

    async def close(self) -> None: ...


async def close_quietly(*owners: Closeable) -> None:
    """End sessions that may be lost already, all of them, even if this task is cancelled meanwhile."""
    closing = asyncio.gather(*(owner.close() for owner in owners), return_exceptions=True)
    cancelled: asyncio.CancelledError | None = None
    while not closing.done():
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    for result in closing.result():
        if isinstance(result, BaseException) and not isinstance(result, EnvTorchError):
            raise result


@dataclass(slots=True)
class SharingCosts:
    """Whether groups are forked or reset, by what was seen to be possible and cheaper."""

    wanted: Sharing | None = None
    """What the caller has decided; None to decide by cost."""
    can_fork: bool = True
    repeats: bool = True
    """A reset with the same seed has always given the same first observation."""
    _reset_s: list[float] = field(default_factory=list)
    _fork_s: list[float] = field(default_factory=list)

    def uses_fork(self, options: Mapping[str, Any]) -> bool:
        """Whether a group with these reset options is forked.

        Without a seed there is no telling whether a reset repeats, so it is forked where that is possible.
        """
        if self.wanted is not None or not self.can_fork:
            return self.wanted == "fork" if self.wanted is not None else False
        if options.get("seed") is None or not self.repeats or not (self._reset_s and self._fork_s):
            return True
        return _typical(self._fork_s) <= _typical(self._reset_s)

    def note(self, *, reset_s: float | None = None, fork_s: float | None = None) -> None:
        """What a reset took, or one copy by a fork."""
        for seen, kept in ((reset_s, self._reset_s), (fork_s, self._fork_s)):
            if seen is not None:
                kept.append(seen)
                del kept[:-32]


def _typical(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


class Beginning:
    """One task after its `reset`, as often as it is needed."""

    def __init__(
        self,
        task: Task,
        places: SessionPlaces,
        transcribe: Callable[[RolloutClient, StepResult[Any]], Awaitable[Transcript]],
        costs: SharingCosts,
        *,
        number: int,
        size: int,
        room: int,
        timeout_s: float | None,
    ) -> None:
        """`number` is its order's at these places; `transcribe` makes a transcript of a first result. `room`
        is how many sessions the order may have open at once."""
        self._task = task
        self._places = places
        self._number = number
        self._transcribe = transcribe
        self._costs = costs
        self._size = size
        self._room = room
        self._timeout_s = timeout_s
        self._connected = 0
        self._root: RolloutClient | None = None
        """A session that stays at the beginning, to be forked."""
        self._copying = asyncio.Lock()
        """Held while the root is forked: one that turns out to be lost is closed once."""
        self._transcript: Transcript | None = None

    @property
    def transcript(self) -> Transcript:
        """A copy of the conversation's beginning."""
        assert self._transcript is not None
        return self._transcript.copy()

    @property
    def has_root(self) -> bool:
        """Whether a session stays at the beginning, beside those that are played."""
        return self._root is not None

    async def open(self, lost_at: list[str]) -> list[RolloutClient]:
        """The first sessions: one for each rollout that there is room for when they are forked, else only
        one; see `copy`. Opened again, when all of them were lost, they may begin in another way."""
        self._transcript = None
        client = await self._reset(lost_at)
        if self._size == 1 or self._room == 1 or not self._costs.uses_fork(self._task.options):
            return [client]
        self._root = client
        count = min(self._size, self._room - 1)
        if self._room != self._size:
            copies = await self._forked(count, lost_at)
            if copies:
                return copies
            count -= 1  # one session less will do, if the root is played as well
        copies = await self._forked(count, lost_at) if count and self._costs.can_fork else []
        return [*copies, self._give_root()]

    async def _forked(self, count: int, lost_at: list[str]) -> list[RolloutClient]:
        """Copies of the root; none where there is no room for so many, or the environment has none."""
        assert self._root is not None
        try:
            return await self._fork(count)
        except CapacityReached:
            return []
        except Unsupported:
            self._costs.can_fork = False
            return []
        except BaseException:
            lost_at.append(self._root.base_url)
            await self.close()
            raise

    async def copy(self, lost_at: list[str]) -> RolloutClient:
        """One more session at the beginning: a fork, or where its origin is lost, a reset elsewhere.

        `lost_at` has the addresses where the rollout was lost before; one where this is lost is added.
        Raises `SessionLost` when a reset gives the members of a group different beginnings.
        """
        async with self._copying:
            if self._root is not None:
                try:
                    return (await self._fork(1))[0]
                except CapacityReached:
                    pass  # a reset waits in turn for a slot
                except EnvTorchError as error:
                    lost_at.append(self._root.base_url)
                    await self.close()
                    if not is_infrastructure(error):
                        raise
        return await self._reset(lost_at)

    async def close(self) -> None:
        """End the session that was kept at the beginning."""
        root, self._root = self._root, None
        if root is not None:
            await close_quietly(root)

    def _give_root(self) -> RolloutClient:
        root, self._root = self._root, None
        assert root is not None
        return root

    async def _fork(self, count: int) -> list[RolloutClient]:
        assert self._root is not None
        began = time.perf_counter()
        copies: list[RolloutClient] = await self._root.fork(count, timeout_s=self._timeout_s)
        self._costs.note(fork_s=(time.perf_counter() - began) / count)
        return copies

    async def _reset(self, lost_at: list[str]) -> RolloutClient:
        attempt, self._connected = self._connected, self._connected + 1
        client = await self._places.open(self._number, attempt, lost_at)
        try:
            began = time.perf_counter()
            result = await client.reset(timeout_s=self._timeout_s, **self._task.options)
            self._costs.note(reset_s=time.perf_counter() - began)
            transcript = await self._transcribe(client, result)
            if self._transcript is None or self._size == 1:
                self._transcript = transcript
            elif transcript.messages != self._transcript.messages:
                self._costs.repeats = False
                logger.warning("task %s: a reset with the same options gave another beginning", self._task.id)
                raise SessionLost("a reset with the same options gave another beginning")
        except BaseException as error:
            lost_at.append(client.base_url)
            if isinstance(error, ConnectFailed | Draining):
                self._places.avoid(client.base_url)
            await close_quietly(client)
            raise
        return client
