"""A flow that takes longer than the call that drives it: a later call goes on where this one stopped."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from envtorch.protocol.reconnect import Connect, Drop, Move, Ping, Receive, Send, Sleep, SocketFlow, Step

__all__ = ["PausableFlow", "Paused"]

T = TypeVar("T")


class Paused(Exception):
    """The deadline of the call has passed; the flow waits to be run again."""


class PausableFlow(Generic[T]):
    """A flow over a socket, run by one call after the other until it ends; then the next run starts another.

    What the flow yields is done within the call's own time. What was not done by then is done again in the
    next call, except for half a message: the flow is told about that at once.
    """

    def __init__(
        self,
        start: Callable[[], SocketFlow[T]],
        *,
        limit_s: float,
        clock: Callable[[], float],
        unharmful: tuple[type[BaseException], ...] = (),
    ) -> None:
        """`start` makes a flow, which has `limit_s`. `unharmful` are exceptions that may end a call and leave
        the flow as it was."""
        self._start = start
        self._limit_s = limit_s
        self._clock = clock
        self._unharmful = unharmful
        self._flow: SocketFlow[T] | None = None
        """The flow that is under way."""
        self._wanted: Step | None = None
        """What it waits for."""
        self.ends = 0.0
        """When the flow has to be done; the time between two calls does not count."""
        self._paused_at = 0.0

    def run(self, deadline: float | None) -> SocketFlow[T]:
        """What the flow returns. Raises `Paused` at the deadline; whatever else it raises ends the flow."""
        now = self._clock()
        if self._flow is None:
            self._flow, self._wanted, self.ends = self._start(), None, now + self._limit_s
        else:
            self.ends += now - self._paused_at
        flow = self._flow
        try:
            wanted = self._wanted or self._go_on(flow.send, None)
            while True:
                try:
                    got = yield self._within(wanted, deadline)
                except GeneratorExit:
                    self.close()
                    raise
                except BaseException as error:
                    self._pause_after(wanted, error, deadline)
                    wanted = self._go_on(flow.throw, error)
                else:
                    wanted = self._go_on(flow.send, got)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            self._paused_at = self._clock()

    def close(self) -> None:
        """Leave the flow where it is, for good."""
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.close()

    def _go_on(self, resume: Callable[[Any], Step], value: Any) -> Step:
        flow, self._flow = self._flow, None  # unless it waits for something else
        self._wanted = resume(value)
        self._flow = flow
        return self._wanted

    def _within(self, wanted: Step, deadline: float | None) -> Step:
        """What the flow waits for, in no more than the time that the call has left."""
        if deadline is None or isinstance(wanted, Drop):
            return wanted
        left_s = deadline - self._clock()
        if left_s <= 0:
            raise Paused
        match wanted:
            case Send() | Receive() | Ping():
                return replace(wanted, deadline=min(wanted.deadline, deadline))
            case Connect() | Move():
                return replace(wanted, timeout_s=min(wanted.timeout_s, left_s))
            case Sleep():
                return Sleep(min(wanted.seconds, left_s))

    def _pause_after(self, wanted: Step, error: BaseException, deadline: float | None) -> None:
        """Raise what ends the call and not the flow: `wanted` failed, and can be done again."""
        if isinstance(wanted, Send | Ping):
            return
        if isinstance(error, self._unharmful):
            raise error
        if deadline is not None and self._clock() >= deadline:
            raise Paused from error
