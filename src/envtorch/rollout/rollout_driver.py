"""What plays rollouts in a process of its own."""

import asyncio
import pickle
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.rollout.driver_places import OrderPlaces
from envtorch.rollout.order_places import Inquiries
from envtorch.rollout.order_player import OrderPlayer
from envtorch.rollout.rollout_orders import Answer, Assignment, DriverEvent, OrderResult

__all__ = ["RolloutDriver"]


class RolloutDriver:
    """Plays orders of rollouts that are elsewhere. All methods are called on one event loop.

    Plain Python: whoever starts workers makes an actor of it.
    """

    def __init__(self) -> None:
        self._orders: dict[int, _Playing] = {}
        self._batches_told = 0
        self._busy_s_told = 0.0

    async def prepare(self, blueprint: bytes) -> None:
        """Unpack what to play with. Raises `ConfigurationError` when this node does not have it all."""
        try:
            parts: dict[str, Any] = pickle.loads(blueprint)  # noqa: S301, from the process that started this one
        except Exception as error:  # it imports and builds what is the caller's
            raise ConfigurationError(
                f"a driver cannot load what it is to play with: {type(error).__name__}: {error}. Install "
                "it on the nodes, or send it: ray.init(runtime_env={'working_dir': '.'})"
            ) from None
        self._places: OrderPlaces = parts["places"]
        self._player = OrderPlayer(parts["policy"], parts["options"])

    async def play(self, assignment: Assignment) -> list[DriverEvent]:
        """Begin to play an order; what there is to tell first. Raises what the policy raises."""
        inquiries = Inquiries()
        places = self._places.of_order(assignment.address, inquiries)
        work = asyncio.create_task(self._player.play(assignment.order, places, assignment.lost))
        work.add_done_callback(lambda _: inquiries.changed.set())
        self._orders[assignment.number] = playing = _Playing(work, inquiries)
        return await self._next(assignment.number, playing)

    async def go_on(self, number: int) -> list[DriverEvent]:
        """What there is to tell next of an order."""
        return await self._next(number, self._orders[number])

    async def answer(self, number: int, place: int, answer: Answer) -> None:
        """Answer what an order has asked, if it still goes on."""
        if number in self._orders:
            self._orders[number].inquiries.answer(place, answer)

    async def cancel(self, number: int) -> None:
        """End an order's sessions, and forget it."""
        playing = self._orders.pop(number, None)
        if playing is not None:
            playing.work.cancel()
            await asyncio.wait([playing.work])

    async def park(self) -> None:
        await self._player.park()

    async def resume(self, version: int | None) -> None:
        self._player.resume(version)

    async def close(self) -> None:
        """End all sessions."""
        for number in list(self._orders):
            await self.cancel(number)
        await self._player.close()

    async def _next(self, number: int, playing: "_Playing") -> list[DriverEvent]:
        await playing.inquiries.changed.wait()
        told = playing.inquiries.collect()
        if playing.work.done() and not playing.work.cancelled():
            self._orders.pop(number, None)
            batches = self._player.batches
            sizes = tuple(batches.sizes[self._batches_told :])
            busy_s = batches.busy_s - self._busy_s_told
            told.append(OrderResult(playing.work.result(), sizes, busy_s))
            self._batches_told, self._busy_s_told = len(batches.sizes), batches.busy_s
        return told


class _Playing:
    def __init__(self, work: "asyncio.Task[Any]", inquiries: Inquiries) -> None:
        self.work = work
        self.inquiries = inquiries
