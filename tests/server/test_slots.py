"""Room for so many, given out fairly."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import CapacityReached
from envtorch.server.sessions.slots import Slots


def test_a_full_house_says_how_full() -> None:
    async def main() -> None:
        slots = Slots(1)
        await slots.take()
        with pytest.raises(CapacityReached, match="1/1"):
            await slots.take()
        with pytest.raises(CapacityReached, match="1/1"):
            await slots.take(wait_s=0.01)
        assert (slots.taken, slots.waiting) == (1, 0)

    asyncio.run(main())


def test_nobody_overtakes() -> None:
    async def main() -> list[int]:
        slots, order = Slots(1), []
        await slots.take()

        async def wait(number: int) -> None:
            await slots.take(wait_s=10)
            order.append(number)
            slots.free()

        waiting = [asyncio.ensure_future(wait(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert slots.waiting == 5
        with pytest.raises(CapacityReached):
            await slots.take()  # the queue has the first claim to what comes free
        slots.free()
        await asyncio.gather(*waiting)
        return order

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


@given(st.lists(st.sampled_from(["take", "wait", "free", "cancel", "tick"]), max_size=60), st.integers(1, 3))
def test_slots_are_neither_lost_nor_invented(moves: list[str], capacity: int) -> None:
    async def main() -> None:
        slots = Slots(capacity)
        held = 0
        waiting: list[asyncio.Task[None]] = []
        for move in moves:
            if move == "take":
                try:
                    await slots.take()
                    held += 1
                except CapacityReached:
                    pass
            elif move == "wait":
                waiting.append(asyncio.ensure_future(slots.take(wait_s=100)))
            elif move == "free" and held:
                held -= 1
                slots.free()
            elif move == "cancel" and waiting:
                waiting.pop().cancel()
            await asyncio.sleep(0)
            held += sum(task.done() and not task.cancelled() for task in waiting)
            waiting = [task for task in waiting if not task.done()]
            await asyncio.sleep(0)
            assert slots.taken <= capacity
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert slots.waiting == 0

    asyncio.run(main())
