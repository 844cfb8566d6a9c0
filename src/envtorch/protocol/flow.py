"""Flows: a conversation written once, driven in either colour.

A flow is a generator. It yields what has to be done (a frame to exchange, an environment's answer that
may have to be awaited), is sent what came of it, and returns its result. A failure of what it yielded
is thrown into it at that very place, so a flow's `try` and `with` mean what they say.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

__all__ = ["Flow", "drive", "drive_async", "settle"]

Y = TypeVar("Y")
S = TypeVar("S")
T = TypeVar("T")

Flow = Generator[Any, Any, T]


def drive(flow: Generator[Y, S, T], act: Callable[[Y], S]) -> T:
    """Run a flow to its end, doing each thing it yields with `act`. An interruption between two things closes
    the flow."""
    try:
        wanted = next(flow)
        while True:
            try:
                got = act(wanted)
            except BaseException as error:
                wanted = flow.throw(error)
            else:
                wanted = flow.send(got)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        flow.close()


async def drive_async(flow: Generator[Y, S, T], act: Callable[[Y], Awaitable[S]]) -> T:
    """`drive`, awaiting `act`."""
    try:
        wanted = next(flow)
        while True:
            try:
                got = await act(wanted)
            except BaseException as error:
                wanted = flow.throw(error)
            else:
                wanted = flow.send(got)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def settle(value: Any) -> Any:
    """The value itself, or what it comes to when awaited."""
    return await value if isinstance(value, Awaitable) else value
