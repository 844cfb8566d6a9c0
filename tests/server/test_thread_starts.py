"""Threads are woken a few at a time, and none is left asleep. Every result is delivered."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from envtorch.protocol.host import CallResult
from envtorch.server.runners.thread_runner import MOST_WOKEN, ThreadResults, ThreadStarts, WorkerThread
from tests.support import PATIENCE_S

MANY = 8 * MOST_WOKEN


def begin_then(starts: ThreadStarts, work: Callable[[], object]) -> Callable[[], None]:
    def job() -> None:
        starts.begun()
        work()

    return job


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_S)


def test_calls_that_wait_for_each_other_are_all_begun() -> None:
    together = threading.Barrier(MANY + 1)

    async def wake_all() -> None:
        starts = ThreadStarts()
        for worker in workers:
            starts.wake(worker, begin_then(starts, lambda: together.wait(PATIENCE_S)))
        await asyncio.to_thread(together.wait, PATIENCE_S)

    workers = [WorkerThread() for _ in range(MANY)]
    asyncio.run(wake_all())
    for worker in workers:
        worker.jobs.put(None)


def test_threads_that_do_not_begin_keep_no_other_asleep() -> None:
    release, begun = threading.Event(), threading.Event()
    late = [WorkerThread() for _ in range(MOST_WOKEN)]
    other = WorkerThread()

    async def wake_all() -> None:
        starts = ThreadStarts()
        for worker in late:
            worker.jobs.put(lambda: release.wait(PATIENCE_S))  # type: ignore[arg-type]
            starts.wake(worker, begin_then(starts, lambda: None))
        starts.wake(other, begin_then(starts, begun.set))
        await until(begun)
        assert not release.is_set()
        release.set()

    asyncio.run(wake_all())
    for worker in (*late, other):
        worker.jobs.put(None)


def test_a_queue_that_threads_empty_meanwhile_is_no_error() -> None:
    class Emptied(deque[Any]):
        """A thread that begins takes the last one after it was seen, and before it is taken."""

        def __len__(self) -> int:
            return 1

    starts = ThreadStarts()
    starts._waiting = Emptied()
    starts._wake_all()
    assert not list(starts._waiting)


def test_every_call_of_many_rounds_is_made_once() -> None:
    made: list[int] = []
    over = threading.Event()

    async def wake_all() -> None:
        starts = ThreadStarts()

        def note(number: int) -> None:
            made.append(number)
            if len(made) == 20 * MANY:
                over.set()

        for round_number in range(20):
            for place, worker in enumerate(workers):
                number = round_number * MANY + place
                starts.wake(worker, begin_then(starts, lambda number=number: note(number)))  # type: ignore[misc]
            await asyncio.sleep(0)
        await until(over)

    workers = [WorkerThread() for _ in range(MANY)]
    asyncio.run(wake_all())
    assert sorted(made) == list(range(20 * MANY))
    for worker in workers:
        worker.jobs.put(None)


def test_a_result_that_cannot_be_delivered_keeps_no_other_from_its_session() -> None:
    async def deliver() -> None:
        loop = asyncio.get_running_loop()
        results = ThreadResults(loop)
        delivered: asyncio.Future[Any] = loop.create_future()

        def fail(result: Any, error: Any) -> None:
            raise OverflowError("no room for that")

        results.post(fail, CallResult(1, None))
        results.post(lambda result, error: delivered.set_result(result), CallResult(2, None))
        assert await asyncio.wait_for(delivered, PATIENCE_S) == 2

    asyncio.run(deliver())
