"""Where drivers in other processes play: beside servers, or on those of a pool that is held here."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from envtorch.pool.leases import Lease
from envtorch.rollout.beginnings import RolloutClient, SessionPlaces
from envtorch.rollout.order_places import Inquiries, LeasedPlaces
from envtorch.rollout.rollout_orders import PlaceMoved, PlaceWanted
from envtorch.rollout.session_places import AddressPlaces, PoolPlaces

__all__ = ["DriverPlaces", "OrderHold", "OrderPlaces", "driver_places_of"]


class OrderPlaces(Protocol):
    """Sent to drivers: opens the sessions of their orders."""

    def of_order(self, address: str, inquiries: Inquiries) -> SessionPlaces:
        """The places of an order that was assigned to the server at this address."""


class OrderHold(Protocol):
    """The places that one order has while it is played."""

    slot: int
    """Which driver plays it: the one of this server."""
    address: str

    async def answer(self, event: PlaceWanted | PlaceMoved) -> str:
        """The address of a place that its driver asks for."""

    def leave(self, place: int, *, is_suspected: bool) -> None:
        """Give one place back; its server may be dead."""

    def end(self) -> None:
        """Give all places back."""


class DriverPlaces(Protocol):
    """Chooses the server of each order."""

    for_drivers: OrderPlaces

    async def take(self, seats: int) -> OrderHold:
        """A place for an order that opens so many sessions."""


def driver_places_of(places: AddressPlaces | PoolPlaces) -> DriverPlaces:
    """The same places, for drivers."""
    if isinstance(places, PoolPlaces):
        return _PooledServers(places)
    return _ServersInTurn(places)


class _ServersInTurn:
    """An order goes to the driver with the fewest sessions."""

    def __init__(self, places: AddressPlaces) -> None:
        self.for_drivers: OrderPlaces = _Nearest(places)
        self._addresses = places.addresses
        self._busy = [0] * len(places.addresses)

    async def take(self, seats: int) -> "_Turn":
        slot = min(range(len(self._busy)), key=self._busy.__getitem__)
        self._busy[slot] += seats
        return _Turn(self._busy, slot, self._addresses[slot], seats)


class _Turn:
    def __init__(self, busy: list[int], slot: int, address: str, seats: int) -> None:
        self.slot, self.address = slot, address
        self._busy, self._seats = busy, seats

    async def answer(self, event: PlaceWanted | PlaceMoved) -> str:
        raise AssertionError("drivers know the addresses themselves")

    def leave(self, place: int, *, is_suspected: bool) -> None: ...

    def end(self) -> None:
        self._busy[self.slot] -= self._seats


class _Nearest:
    def __init__(self, places: AddressPlaces) -> None:
        self._places = places

    def of_order(self, address: str, inquiries: Inquiries) -> SessionPlaces:
        return _From(self._places, self._places.addresses.index(address))


class _From:
    """Addresses in turn, from one on: every order begins at the server beside its driver."""

    def __init__(self, places: AddressPlaces, first: int) -> None:
        self._places, self._first = places, first

    async def open(self, number: int, attempt: int, lost_at: Sequence[str]) -> RolloutClient:
        return await self._places.open(self._first, attempt, lost_at)

    def avoid(self, address: str) -> None:
        self._places.avoid(address)


class _PooledServers:
    """An order goes to the server of the pool with the most room, and holds a place there."""

    def __init__(self, places: PoolPlaces) -> None:
        self._pool = places.pool
        self.for_drivers: OrderPlaces = _Leased(self._pool.make_client, recovers=self._pool.recovers)

    async def take(self, seats: int) -> "_HeldLeases":
        return _HeldLeases(self._pool.lease, await self._pool.lease())


class _HeldLeases:
    def __init__(self, take: Callable[[], Awaitable[Lease]], first: Lease) -> None:
        self.slot, self.address = first.replica.slot, first.replica.url
        self._take = take
        self._leases = {0: first}

    async def answer(self, event: PlaceWanted | PlaceMoved) -> str:
        if isinstance(event, PlaceMoved):
            if event.place not in self._leases:
                self._leases[event.place] = self._leases[event.origin].for_copy()
            return await self._leases[event.place].next_address_async(event.timeout_s)
        self._leases[event.place] = lease = await self._take()
        return lease.replica.url

    def leave(self, place: int, *, is_suspected: bool) -> None:
        if is_suspected:
            self._leases[place].suspect()
        self._leases[place].end()

    def end(self) -> None:
        for lease in self._leases.values():
            lease.end()


class _Leased:
    def __init__(self, make_client: Callable[..., Any], *, recovers: bool) -> None:
        self._make_client = make_client
        self._recovers = recovers

    def of_order(self, address: str, inquiries: Inquiries) -> SessionPlaces:
        return LeasedPlaces(self._make_client, address, inquiries, recovers=self._recovers)
