"""How a driver in another process gets the sessions of its orders: it asks those who hold the pool."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from envtorch.client.addresses import Elsewhere
from envtorch.errors import EnvTorchError, Unsupported
from envtorch.rollout.beginnings import RolloutClient
from envtorch.rollout.rollout_orders import Answer, DriverEvent, PlaceLeft, PlaceMoved, PlaceWanted
from envtorch.rollout.session_places import PooledClient

__all__ = ["Inquiries", "LeasedPlaces"]


class Inquiries:
    """What one order needs to be told, and what it has to tell, until it is collected."""

    def __init__(self) -> None:
        self._told: list[DriverEvent] = []
        self._unanswered: dict[int, asyncio.Future[str]] = {}
        self._numbers = itertools.count()
        self._has_asked = False
        """This order takes part in the waiting for places, so it must not keep one that it has left."""
        self.changed = asyncio.Event()
        """There is something to collect."""

    def number(self) -> int:
        """A number for a place."""
        return next(self._numbers)

    def leave(self, event: PlaceLeft) -> None:
        """Tell of a place that is free again: at once if others may wait for it, else with the result."""
        self._told.append(event)
        if self._has_asked:
            self.changed.set()

    async def ask(self, event: PlaceWanted | PlaceMoved) -> str:
        """The address that is answered. Raises what is answered instead."""
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unanswered[event.place] = answer
        self._told.append(event)
        self._has_asked = True
        self.changed.set()
        return await answer

    def answer(self, place: int, answer: Answer) -> None:
        waiting = self._unanswered.pop(place)
        if waiting.done():
            return  # it was cancelled meanwhile
        if isinstance(answer, str):
            waiting.set_result(answer)
        else:
            waiting.set_exception(answer)

    def collect(self) -> list[DriverEvent]:
        self.changed.clear()
        told, self._told = self._told, []
        return told


class LeasedPlaces:
    """Opens the sessions of one order at the places that a pool in another process gives it."""

    def __init__(
        self, make_client: Callable[..., Any], address: str, inquiries: Inquiries, *, recovers: bool
    ) -> None:
        """`address` is of the first place, which was taken for the order before it was sent."""
        self._make_client = make_client
        self._address = address
        self._inquiries = inquiries
        self._recovers = recovers

    async def open(self, number: int, attempt: int, lost_at: Sequence[str]) -> RolloutClient:
        place = self._inquiries.number()
        address = await self._inquiries.ask(PlaceWanted(place)) if place else self._address
        lease = AskedLease(self._inquiries, place, place)
        options: dict[str, Any] = {"elsewhere": lease} if self._recovers else {}
        return PooledClient(self._make_client(address, **options), lease)

    def avoid(self, address: str) -> None: ...  # the pool sees to it


class AskedLease(Elsewhere):
    """A place that is held in another process, which is told when it is left."""

    def __init__(self, inquiries: Inquiries, place: int, origin: int) -> None:
        self._inquiries = inquiries
        self._place = place
        self._origin = origin
        """The place that holders know: this one, or while a copy has not moved, that of its origin."""

    async def next_address_async(self, timeout_s: float) -> str:
        address = await self._inquiries.ask(PlaceMoved(self._place, self._origin, timeout_s))
        self._origin = self._place
        return address

    def next_address(self, timeout_s: float) -> str:
        raise Unsupported("drivers of rollouts await their clients")

    def for_copy(self) -> Elsewhere:
        return AskedLease(self._inquiries, self._inquiries.number(), self._origin)

    def release(self) -> None: ...

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._place == self._origin:  # a copy that has not moved has no place to leave
            self._inquiries.leave(PlaceLeft(self._place, is_suspected=isinstance(error, EnvTorchError)))
