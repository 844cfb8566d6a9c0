"""The time in which a client has no socket, and how long it goes on trying to get one."""

from envtorch.errors import ConnectFailed
from envtorch.protocol.backoff import new_backoff

__all__ = ["Outage"]


class Outage:
    """The time from losing a socket until every session is on another one. It has one time budget, however
    many calls are made meanwhile."""

    def __init__(self, ends: float, *, refused_s: float) -> None:
        """`ends` is when to give up; a server that refuses connections is tried for `refused_s` only."""
        self._ends = ends
        self._refused_s = refused_s
        self._backoff = new_backoff()
        self.reason: Exception | None = None
        self.is_shut_down = False
        """The server said that it was going away."""

    def failed(self, now: float, error: Exception) -> None:
        """An attempt to connect failed."""
        self.reason = error
        refused = isinstance(error, ConnectFailed) and error.details.get("is_refused", False)
        final = isinstance(error, ConnectFailed) and error.details.get("is_final", False)
        if final or (refused and self.is_shut_down):
            self._ends = now
        elif refused:
            self._ends = min(self._ends, now + self._refused_s)

    def next_delay(self, now: float) -> float | None:
        """How long to wait before the next attempt; None when the budget is used up."""
        delay = self._backoff.next_s()
        return delay if now + delay < self._ends else None
