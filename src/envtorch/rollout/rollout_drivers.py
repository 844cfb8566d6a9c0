"""Rollouts that are played in other processes: which driver plays what, and what becomes of one that dies."""

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from envtorch.env import load_object
from envtorch.errors import ConfigurationError, EnvTorchError, ProviderFailed
from envtorch.pool.outcomes import is_infrastructure
from envtorch.rollout.completions import BatchStatistics, RolloutPolicy
from envtorch.rollout.driver_places import DriverPlaces, OrderHold
from envtorch.rollout.lost_attempts import Lost, pause
from envtorch.rollout.play_options import PlayOptions
from envtorch.rollout.rollout_orders import (
    Answer,
    Assignment,
    DriverEvent,
    OrderResult,
    PlaceLeft,
    PlaceMoved,
    PlaceWanted,
    RolloutOrder,
)
from envtorch.rollout.seats import Seats

__all__ = ["DriverWorker", "DriverWorkers", "OnWorkers", "RolloutDrivers"]

logger = logging.getLogger(__name__)

DRIVER = "envtorch.rollout.rollout_driver:RolloutDriver"
CLOSE_S = 10.0
"""How long a driver may take to end its sessions."""


class DriverWorker(Protocol):
    """A process somewhere, with one object in it."""

    is_lost: bool
    """The process is gone, with what it did."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """What a coroutine method of the object returns or raises. `ProviderFailed` when it `is_lost`."""

    def kill(self) -> None:
        """End the process at once."""


class DriverWorkers(Protocol):
    """Starts processes on the nodes of a cluster."""

    def pack(self, parts: Mapping[str, Any]) -> bytes:
        """A pickled dictionary. Raises `ConfigurationError` with the name of what cannot be pickled."""

    async def start(self, path: str, *, near: str) -> DriverWorker:
        """A process with an object of the class at `path`, on the node with this address if it has room.

        Raises `ConfigurationError` when there is no node for it, `ProviderFailed` when it died meanwhile.
        """


OnWorkers = Literal["ray"] | DriverWorkers
"""Where drivers run."""


@dataclass(eq=False, slots=True)
class _Driver:
    worker: DriverWorker
    near: str
    orders: int = 0
    is_retired: bool = False
    """Its server has a successor on another node: it gets no further order."""


class RolloutDrivers:
    """Has orders played by drivers, one for each server."""

    def __init__(
        self, on: OnWorkers, places: DriverPlaces, policy: RolloutPolicy, options: PlayOptions
    ) -> None:
        if isinstance(on, str):
            if on != "ray":
                raise ConfigurationError(f"on is 'ray', or a RayWorkers with its options, not {on!r}")
            workers: DriverWorkers = load_object("envtorch.providers.ray_workers:RayWorkers")()
        else:
            workers = on
        self._workers = workers
        self._places = places
        self._blueprint = workers.pack({"places": places.for_drivers, "policy": policy, "options": options})
        self._attempts = options.attempts
        self._seats = Seats(options.concurrency)
        self._numbers = itertools.count()
        self._drivers: dict[int, _Driver] = {}
        self._retired: set[_Driver] = set()
        self._starting: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._without: set[int] = set()
        """Servers that no driver could be started for: others play there."""
        self._is_parked = False
        self._loose: set[asyncio.Task[Any]] = set()
        self.version = 0
        self.batches = BatchStatistics()

    async def play(self, order: RolloutOrder) -> Any:
        """The result of an order. With a driver that dies an attempt is lost, and made again by another."""
        lost: Lost = ()
        async with self._seats.take(order.seats):
            while True:
                try:
                    return await self._attempt(order, lost)
                except EnvTorchError as error:
                    if not is_infrastructure(error):
                        raise
                    logger.warning("an attempt at task %s was lost: %s", order.task.id, error)
                    if len(lost) + 1 >= self._attempts:
                        return order.given_up(lost, error)
                    lost = (*lost, error)
                await pause(len(lost))

    async def park(self) -> None:
        self._is_parked = True
        await asyncio.gather(*(self._tell(driver, "park") for driver in self._all()))

    def resume(self, version: int | None) -> None:
        self.version = self.version if version is None else version
        self._is_parked = False
        for driver in self._all():
            self._loosely(self._tell(driver, "resume", version))

    async def close(self) -> None:
        """End the sessions of all drivers, and the drivers."""
        await asyncio.gather(*(self._close(driver) for driver in self._all()))
        for task in self._loose:
            task.cancel()
        await asyncio.gather(*self._loose, return_exceptions=True)
        self._drivers.clear()
        self._retired.clear()

    # One attempt at one order.

    async def _attempt(self, order: RolloutOrder, lost: Lost) -> Any:
        hold = await self._places.take(order.seats)
        try:
            driver = await self._driver_of(hold)
            driver.orders += 1
            try:
                return await self._played(
                    driver, Assignment(next(self._numbers), order, hold.address, lost), hold
                )
            finally:
                driver.orders -= 1
                if driver.is_retired and not driver.orders:
                    self._retired.discard(driver)
                    self._loosely(self._close(driver))
        finally:
            hold.end()

    async def _played(self, driver: _Driver, assignment: Assignment, hold: OrderHold) -> Any:
        number = assignment.number
        answering: set[asyncio.Task[None]] = set()
        try:
            told: list[DriverEvent] = await driver.worker.call("play", assignment)
            while True:
                for event in told:
                    if isinstance(event, OrderResult):
                        self.batches.sizes += event.batch_sizes
                        self.batches.busy_s += event.busy_s
                        return event.result
                    if isinstance(event, PlaceLeft):
                        hold.leave(event.place, is_suspected=event.is_suspected)
                    else:
                        answering.add(asyncio.create_task(self._answer(driver, number, event, hold)))
                told = await driver.worker.call("go_on", number)
        except asyncio.CancelledError:
            self._loosely(self._tell(driver, "cancel", number))
            raise
        finally:
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)

    async def _answer(
        self, driver: _Driver, number: int, event: PlaceWanted | PlaceMoved, hold: OrderHold
    ) -> None:
        """Wait for the place that a driver asks for; meanwhile it may tell of others that it leaves."""
        answer: Answer
        try:
            answer = await hold.answer(event)
        except EnvTorchError as error:
            answer = error
        await self._tell(driver, "answer", number, event.place, answer)

    # Drivers.

    async def _driver_of(self, hold: OrderHold) -> _Driver:
        """The driver beside this server; another one if it cannot be started."""
        near = urlsplit(hold.address).hostname or ""
        async with self._starting[hold.slot]:
            driver = self._drivers.get(hold.slot)
            if driver is not None and not driver.worker.is_lost and driver.near == near:
                return driver
            if driver is not None:
                self._retire(hold.slot, driver)
            if hold.slot not in self._without:
                try:
                    return await self._start(hold.slot, near)
                except ConfigurationError as error:
                    if not self._living():
                        raise
                    logger.warning("no driver near %s: %s; others play there", near, error)
                    self._without.add(hold.slot)
        return min(self._living() or [await self._start(hold.slot, near)], key=lambda one: one.orders)

    async def _start(self, slot: int, near: str) -> _Driver:
        worker = await self._workers.start(DRIVER, near=near)
        try:
            await worker.call("prepare", self._blueprint)
            self._drivers[slot] = driver = _Driver(worker, near)
            if self.version:
                await worker.call("resume", self.version)
            if self._is_parked:
                await worker.call("park")
        except BaseException:
            self._drivers.pop(slot, None)
            worker.kill()
            raise
        return driver

    def _retire(self, slot: int, driver: _Driver) -> None:
        del self._drivers[slot]
        if driver.worker.is_lost:
            driver.worker.kill()
        elif driver.orders:
            driver.is_retired = True
            self._retired.add(driver)
        else:
            self._loosely(self._close(driver))

    def _living(self) -> list[_Driver]:
        return [driver for driver in self._drivers.values() if not driver.worker.is_lost]

    def _all(self) -> list[_Driver]:
        return [*self._drivers.values(), *self._retired]

    async def _tell(self, driver: _Driver, method: str, *arguments: Any) -> None:
        """Call a method of a driver that may be lost."""
        try:
            await driver.worker.call(method, *arguments)
        except ProviderFailed:
            if not driver.worker.is_lost:
                raise

    async def _close(self, driver: _Driver) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._tell(driver, "close")
        except TimeoutError:
            logger.warning("the driver near %s did not end within %g s: it is killed", driver.near, CLOSE_S)
        finally:
            driver.worker.kill()

    def _loosely(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)
