"""Environments on threads of their own, always the same one: for environments that block."""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from envtorch.protocol.calls import Call
from envtorch.protocol.flow import settle
from envtorch.protocol.host import CallResult, EnvironmentHost, answer, begin
from envtorch.server.runners.forked_process import end_if_forked, finish_here
from envtorch.server.runners.runner import Done

__all__ = ["LoopThreadRunner", "ThreadResults", "ThreadRunner", "ThreadStock", "WorkerThread"]

logger = logging.getLogger(__name__)

MOST_WOKEN = 4
"""How many threads may be on their way to a call."""
PATIENCE_S = 0.02
"""How long a thread is left asleep while others are on their way."""
MOST_IDLE = 64
"""How many idle threads are kept for sessions to come."""


class ThreadResults:
    """Delivers to one event loop, which is woken once for all results that are ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[tuple[Done, CallResult]] = deque()
        self._will_deliver = False

    def post(self, done: Done, answered: CallResult) -> None:
        """Have `done` called on the loop. Called from any thread."""
        self._ready.append((done, answered))
        if not self._will_deliver:  # two threads may both find it so: then the loop is woken twice
            self._will_deliver = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._will_deliver = False  # before looking: what comes after the last look wakes the loop again
        while self._ready:
            done, answered = self._ready.popleft()
            try:
                done(*answered)
            except Exception:  # the results of other sessions wait behind this one
                logger.exception("the result of a call could not be delivered")


class WorkerThread:
    """A thread that runs what it is given, in order.

    It is a daemon: an environment that hangs must not keep a stopped server from exiting.
    """

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.is_busy = False
        threading.Thread(target=self._work, name="envtorch-environment", daemon=True).start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()

    async def run(self, function: Callable[[], Any], results: ThreadResults) -> Any:
        """What `function` returns, called on this thread. Raises what it raises."""
        over: asyncio.Future[CallResult] = results.loop.create_future()

        def done(result: Any, error: Any) -> None:
            if over.done():
                return
            if error is None:
                over.set_result(result)
            else:
                over.set_exception(error)

        def job() -> None:
            try:
                answered = CallResult(function(), None)
            except BaseException as error:  # it belongs to whoever awaits the result
                kept = error if isinstance(error, Exception) else RuntimeError(repr(error))
                kept = RuntimeError(repr(error)) if isinstance(error, StopIteration) else kept
                answered = CallResult(None, kept)  # type: ignore[arg-type]
            self.is_busy = False
            results.post(done, answered)

        self.is_busy = True
        self.jobs.put(job)
        return await over


class ThreadStarts:
    """Wakes threads for their calls: a few at a time, or all that have waited for `PATIENCE_S`.

    A thread that was woken waits for the interpreter's lock, and one that waits for longer than the switch
    interval interrupts whoever holds it. With hundreds of threads in that wait, the interruptions cost more
    than short calls do.
    """

    def __init__(self) -> None:
        self._places: deque[None] = deque([None] * MOST_WOKEN, MOST_WOKEN)
        self._waiting: deque[tuple[WorkerThread, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def wake(self, worker: WorkerThread, job: Callable[[], None]) -> None:
        """Have a thread do its job, which first says that it has `begun`. Called on the event loop."""
        self._waiting.append((worker, job))
        self._wake_next()
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._wake_all)

    def begun(self) -> None:
        """A thread that was woken has the interpreter's lock. Called on that thread."""
        self._places.append(None)
        self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:  # looked at after a place was given back, so that none is left waiting
            try:
                self._places.pop()
            except IndexError:
                return  # the next one that has begun looks again
            try:
                worker, job = self._waiting.popleft()
            except IndexError:
                self._places.append(None)
            else:
                worker.jobs.put(job)

    def _wake_all(self) -> None:
        """Those that were woken do not begin: a call holds the interpreter's lock for long."""
        self._timer = None
        with suppress(IndexError):  # empty; threads that begin meanwhile take from it, too
            while True:
                worker, job = self._waiting.popleft()
                worker.jobs.put(job)


class ThreadStock:
    """Threads for the sessions of one server. A session keeps its thread; an idle one serves the next."""

    def __init__(self) -> None:
        self._idle: list[WorkerThread] = []
        self._is_closed = False
        self._results: ThreadResults | None = None
        self.starts = ThreadStarts()

    def results(self) -> ThreadResults:
        """The way back to the event loop that runs."""
        loop = asyncio.get_running_loop()
        if self._results is None or self._results.loop is not loop:
            self._results = ThreadResults(loop)
        return self._results

    def take(self) -> WorkerThread:
        return self._idle.pop() if self._idle else WorkerThread()

    def give_back(self, worker: WorkerThread) -> None:
        """The session is over. A thread that is still in a call ends after it."""
        if self._is_closed or worker.is_busy or len(self._idle) >= MOST_IDLE:
            worker.jobs.put(None)
        else:
            self._idle.append(worker)

    def close(self) -> None:
        """End the idle threads; the others end when they are given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().jobs.put(None)


class ThreadRunner:
    """Calls an environment on its thread. A call that runs cannot be stopped."""

    ended = None
    steps_together = None

    def __init__(self, host: EnvironmentHost, worker: WorkerThread, stock: ThreadStock) -> None:
        self.host = host
        self.name, self.has_tools = host.name, host.has_tools
        self._worker, self._stock = worker, stock

    def start(self, call: Call, done: Done) -> None:
        if call.operation == "fork":
            done = partial(self._forked, done)
        results = self._stock.results()
        self._worker.is_busy = True
        self._stock.starts.wake(self._worker, partial(self._answer, call, results, done))

    def _answer(self, call: Call, results: ThreadResults, done: Done) -> None:
        """On the thread."""
        self._stock.starts.begun()
        process = os.getpid()
        answered = answer(self.host, call, _settled)
        end_if_forked(process)
        self._worker.is_busy = False
        results.post(done, answered)

    def _forked(self, done: Done, hosts: Any, error: Any) -> None:
        stock = self._stock
        done(None if hosts is None else [ThreadRunner(host, stock.take(), stock) for host in hosts], error)

    def stop(self) -> bool:
        return False

    async def close(self) -> None:
        self._stock.give_back(self._worker)


class LoopThreadRunner:
    """Calls an environment on a thread with an event loop of its own: it both awaits and blocks."""

    ended = None
    steps_together = None

    def __init__(self, host: EnvironmentHost, worker: WorkerThread, stock: ThreadStock) -> None:
        self.host = host
        self.name, self.has_tools = host.name, host.has_tools
        self._worker, self._stock = worker, stock
        self._loop = asyncio.new_event_loop()
        worker.jobs.put(self._loop.run_forever)

    def start(self, call: Call, done: Done) -> None:
        if call.operation == "fork":
            done = partial(self._forked, done)
        results = self._stock.results()
        self._worker.is_busy = True
        self._loop.call_soon_threadsafe(self._begin, call, results, done)

    def _begin(self, call: Call, results: ThreadResults, done: Done) -> None:
        """On the thread, as `_finished`."""
        process = os.getpid()
        answered = begin(self.host, call)
        end_if_forked(process)
        if isinstance(answered, CallResult):
            self._finished(results, done, answered)
            return
        task = self._loop.create_task(finish_here(call, *answered))
        task.add_done_callback(lambda task: self._finished(results, done, task.result()))

    def _finished(self, results: ThreadResults, done: Done, answered: CallResult) -> None:
        self._worker.is_busy = False
        results.post(done, answered)

    def _forked(self, done: Done, hosts: Any, error: Any) -> None:
        stock = self._stock
        copies = None if hosts is None else [LoopThreadRunner(host, stock.take(), stock) for host in hosts]
        done(copies, error)

    def stop(self) -> bool:
        return False

    async def close(self) -> None:
        if self._worker.is_busy:
            self._stock.give_back(self._worker)
            return
        ending = asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop)
        ending.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        await self._worker.run(lambda: None, self._stock.results())
        self._loop.close()
        self._stock.give_back(self._worker)


async def _cancel_the_rest() -> None:
    """End what an environment left running on its loop."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def _settled(value: Any) -> Any:
    """A value, or what it comes to: on this thread, which has no loop."""
    return asyncio.run(settle(value)) if isinstance(value, Awaitable) else value
