"""Where an environment lives: on the event loop, on a thread of its own, or on a thread with a loop.

A runner drives the flows of an `EnvironmentHost`, always in the same place and one at a time.
"""

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import msgspec

from envtorch.env import Environment
from envtorch.errors import Cancelled, EnvTorchError, InternalError
from envtorch.protocol.binding import Colour
from envtorch.protocol.flow import drive, drive_async, settle
from envtorch.protocol.formats import Format
from envtorch.protocol.host import EnvironmentHost, Host
from envtorch.protocol.messages import Step
from envtorch.protocol.wire import Reply
from envtorch.server.runners.thread_results import Cancel, Delivery, Done, Mailbox, Pending, post

__all__ = ["Housed", "InlineRunner", "LoopThreadRunner", "Runner", "ThreadRunner", "build"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Generator[Any, Any, T]

Start = Callable[[bytes, Format, Done, Delivery | None], Cancel]
"""Begins a step. `done` is called on the event loop, and never before the beginning is over. An environment
that lives elsewhere may have its reply delivered from there."""


@dataclass(frozen=True, slots=True)
class Housed:
    """An environment, and where it lives."""

    host: Host
    runner: "Runner"


class Runner(Protocol):
    """Runs the flows of one environment where that environment lives."""

    @property
    def immediate(self) -> EnvironmentHost | None:
        """The environment's host, where it may be called right here and never waits; else None."""

    @property
    def joins(self) -> EnvironmentHost | None:
        """The environment's host, where its step may be taken right here with those of others; else None."""

    @property
    def start(self) -> Start | None:
        """How to begin a step with no task around it, where there is a way."""

    @property
    def delivers(self) -> bool:
        """Whether `start` heeds its `Delivery`."""

    @property
    def can_stop(self) -> bool:
        """Whether a call that runs can be cancelled."""

    @property
    def ended(self) -> str | None:
        """Why no call can be made any more; None while one can."""

    async def run(self, flow: Work[T]) -> T: ...

    async def fork(self, host: Host, count: int) -> "list[Housed]":
        """Exact copies of this runner's environment, all or none, each with a runner of its own."""
        ...

    async def close(self) -> None:
        """End the runner; what still runs ends first."""


class InlineRunner:
    """On the server's event loop: for async environments, and for those that never block."""

    can_stop = True
    delivers = False
    ended = None

    def __init__(self, host: EnvironmentHost) -> None:
        self.immediate = host if host.colour is Colour.SYNC else None
        self.joins = self.immediate if host.step_many is None else host
        self.start: Start | None = partial(_start_on_loop, host) if self.immediate is None else None

    async def run(self, flow: Work[T]) -> T:
        return await drive_async(flow, settle)

    async def fork(self, host: Host, count: int) -> list[Housed]:
        return await _fork_here(self, host, count)

    async def close(self) -> None:
        pass


class ThreadRunner:
    """On a thread of its own, always the same one: for environments that block.

    The thread is a daemon: an environment that hangs must not keep a stopped server from exiting.
    """

    immediate = joins = None
    start: Start | None = None
    can_stop = False
    delivers = True
    ended = None

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox.of(self._loop)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    async def run(self, flow: Work[T]) -> T:
        return await self.call(lambda: drive(flow, _settle_here))

    async def fork(self, host: Host, count: int) -> list[Housed]:
        return await _fork_here(self, host, count)

    async def call(self, function: Callable[[], T]) -> T:
        """What `function` returns, called on this thread."""
        loop = asyncio.get_running_loop()  # the caller's: a test client has one for each request
        outcome: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result = function()
            except BaseException as error:  # it belongs to whoever awaits the outcome
                post(loop, _reject, outcome, error)
            else:
                post(loop, _resolve, outcome, result)

        self._jobs.put(job)
        return await outcome

    def adopt(self, host: EnvironmentHost) -> None:
        """This thread is the home of that environment."""
        self.start = partial(self._start, host)

    def _start(
        self, host: EnvironmentHost, action: bytes, format: Format, done: Done, delivery: Delivery | None
    ) -> Cancel:
        pending = Pending(done, delivery)
        self._jobs.put(partial(self._step, pending, host, action, format))
        return pending.cancel

    def _step(self, pending: Pending, host: EnvironmentHost, action: bytes, format: Format) -> None:
        reply, failed = None, None
        try:
            reply = host.step_at_once(action, format)
            if reply is None:  # its answer has to be awaited after all
                request = Step(msgspec.Raw(action))
                reply = drive(host.reply(request, strict=False, format=format), _settle_here)
        except BaseException as error:  # it belongs to whoever waits for the outcome
            failed = as_ours(error)
        pending.end(self._mailbox, reply, failed)

    def occupy(self, function: Callable[[], None]) -> None:
        """Give the thread to `function` for as long as that takes."""
        self._jobs.put(function)

    async def close(self) -> None:
        await self.call(lambda: None)
        self._jobs.put(None)  # joining it would hold up the loop while thousands of threads want their turn


class LoopThreadRunner:
    """On a thread with an event loop of its own: for environments that both await and block."""

    immediate = joins = None
    start = None
    can_stop = delivers = False
    ended = None

    def __init__(self, thread: ThreadRunner) -> None:
        self._thread = thread
        self._loop = asyncio.new_event_loop()
        thread.occupy(self._loop.run_forever)

    async def run(self, flow: Work[T]) -> T:
        pending = asyncio.run_coroutine_threadsafe(drive_async(flow, settle), self._loop)
        return await asyncio.wrap_future(pending)

    async def fork(self, host: Host, count: int) -> list[Housed]:
        return await _fork_here(self, host, count)

    async def close(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).add_done_callback(
            lambda _: self._loop.call_soon_threadsafe(self._loop.stop)
        )
        await self._thread.close()
        self._loop.close()


def _start_on_loop(
    host: EnvironmentHost, action: bytes, format: Format, done: Done, delivery: Delivery | None
) -> Cancel:
    """Begin a step of an environment that is awaited."""
    task = asyncio.get_running_loop().create_task(host.step_awaited(action, format))
    task.add_done_callback(partial(_ended, done))
    return task.cancel


def _ended(done: Done, task: "asyncio.Task[Reply]") -> None:
    if task.cancelled():
        done(None, Cancelled("the request was taken back"))
    elif (error := task.exception()) is not None:
        done(None, as_ours(error))
    else:
        done(task.result(), None)


def as_ours(error: BaseException) -> EnvTorchError:
    """Whatever went wrong, as one of our errors: what nobody foresaw is logged, under an id that is told."""
    if isinstance(error, EnvTorchError):
        return error
    error_id = secrets.token_hex(6)
    logger.error("a request failed [error %s]", error_id, exc_info=error)
    return InternalError("the server failed to answer", error_id=error_id)


async def _cancel_the_rest() -> None:
    """End what an environment left running on its loop."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def _settle_here(value: Any) -> Any:
    """A value, or what it comes to: on this thread, which has no loop."""
    return asyncio.run(settle(value)) if asyncio.iscoroutine(value) else value


def _resolve(outcome: "asyncio.Future[T]", result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _reject(outcome: "asyncio.Future[Any]", error: BaseException) -> None:
    if not outcome.done():
        # A future refuses StopIteration, which would look like the end of the coroutine awaiting it.
        outcome.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)


async def build(
    make: Callable[[], EnvironmentHost], *, known: type[Environment[Any, Any, Any]] | None
) -> Housed:
    """An environment and its runner, the environment built where it will live.

    An async environment is the exception: it lives on the loop, but a constructor may block, so it is
    built off the loop. `known` is the environment's class, where the caller knows it in advance.
    """
    if known is not None and not known.BLOCKING:
        host = make()
        return Housed(host, InlineRunner(host))
    thread = ThreadRunner(name=f"env-{known.__name__ if known else 'new'}")
    try:
        host = await thread.call(make)
    except BaseException:
        await thread.close()
        raise
    if _lives_on_loop(host):
        await thread.close()
        return Housed(host, InlineRunner(host))
    return _on_thread(host, thread)


def _lives_on_loop(host: EnvironmentHost) -> bool:
    return host.colour is Colour.ASYNC or not host.environment.BLOCKING


def _on_thread(host: EnvironmentHost, thread: ThreadRunner) -> Housed:
    if host.colour is Colour.MIXED:
        return Housed(host, LoopThreadRunner(thread))
    thread.adopt(host)
    return Housed(host, thread)


async def _fork_here(runner: Runner, host: Host, count: int) -> list[Housed]:
    """Copies of an environment of this process."""
    assert isinstance(host, EnvironmentHost)
    return [_house(copy) for copy in await runner.run(host.fork(count))]


def _house(host: EnvironmentHost) -> Housed:
    """A place of its own for an environment that was copied."""
    if _lives_on_loop(host):
        return Housed(host, InlineRunner(host))
    return _on_thread(host, ThreadRunner(name=f"env-{type(host.environment).__name__}"))
