"""One brain, two colours: flows say what they wait for, and a blocking or an async shell does the waiting.

A flow is a generator. It works on non-blocking descriptors itself and yields only when it cannot go on.
"""

import asyncio
import inspect
import select
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from envtorch.protocol import flow as flows

__all__ = ["AskOwner", "Block", "Flow", "Wait", "drive", "drive_async"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when one of these descriptors is ready or the deadline has passed: be sent the ready ones."""

    readers: Sequence[int] = ()
    writers: Sequence[int] = ()
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class AskOwner:
    """Call a function of the owner's, plain or async: be sent what it returned."""

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """Do something that takes a while and has no descriptor to wait for: be sent what it returned."""

    function: Callable[[], Any]


Flow = Generator[Wait | AskOwner | Block, Any, T]


def drive(flow: Flow[T]) -> T:
    """Run a flow to its end, blocking."""
    return flows.drive(flow, _perform)


def _perform(step: Wait | AskOwner | Block) -> Any:
    if isinstance(step, Wait):
        return _poll(step)
    if isinstance(step, Block):
        return step.function()
    answer = step.function(*step.args, **step.kwargs)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("a blocking sandbox cannot call an async function; use AsyncSandbox")
    return answer


def _poll(step: Wait) -> frozenset[int]:
    poll = select.poll()
    for descriptor in step.readers:
        poll.register(descriptor, select.POLLIN)
    for descriptor in step.writers:
        poll.register(descriptor, select.POLLOUT)
    left = None if step.deadline is None else max(0.0, step.deadline - time.monotonic()) * 1000
    return frozenset(descriptor for descriptor, _ in poll.poll(left))


async def drive_async(flow: Flow[T]) -> T:
    """Run a flow to its end without ever blocking the event loop."""
    return await flows.drive_async(flow, _perform_async)


async def _perform_async(step: Wait | AskOwner | Block) -> Any:
    if isinstance(step, Wait):
        return await _poll_async(step)
    if isinstance(step, Block):
        return await asyncio.to_thread(step.function)
    if inspect.iscoroutinefunction(step.function):
        return await step.function(*step.args, **step.kwargs)
    answer = await asyncio.to_thread(step.function, *step.args, **step.kwargs)
    return await answer if inspect.isawaitable(answer) else answer


async def _poll_async(step: Wait) -> frozenset[int]:
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    ready: set[int] = set()

    def wake(descriptor: int) -> None:
        ready.add(descriptor)
        if not woken.done():
            woken.set_result(None)

    for descriptor in step.readers:
        loop.add_reader(descriptor, wake, descriptor)
    for descriptor in step.writers:
        loop.add_writer(descriptor, wake, descriptor)
    left = None if step.deadline is None else max(0.0, step.deadline - time.monotonic())
    try:
        async with asyncio.timeout(left):
            await woken
    except TimeoutError:
        pass
    finally:
        for descriptor in step.readers:
            loop.remove_reader(descriptor)
        for descriptor in step.writers:
            loop.remove_writer(descriptor)
    return frozenset(ready)
