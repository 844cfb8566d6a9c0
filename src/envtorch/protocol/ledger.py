"""Exactly once: which requests a session has taken, and what it answered."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from envtorch.errors import ProtocolError

__all__ = ["Ledger"]

T = TypeVar("T")


class Ledger(Generic[T]):
    """Outcomes by request id, the newest kept.

    Numbers grow: a number at or below the highest one taken has been taken, even when its outcome is no
    longer kept, and is then refused rather than run again. Texts (HTTP's `request_id`) are known only
    while they are kept. What `is_pending` is never dropped.
    """

    def __init__(self, is_pending: Callable[[T], bool], *, keep: int = 128) -> None:
        self._is_pending = is_pending
        self._keep = keep
        self._outcomes: dict[int | str, T] = {}
        self.newest = 0
        """The highest number taken."""

    def find(self, id: int | str) -> T | None:
        """The outcome of a request that was taken; None for a new one."""
        outcome = self._outcomes.get(id)
        if outcome is None and isinstance(id, int) and id <= self.newest:
            raise ProtocolError(
                f"request {id} was taken before, and its reply is no longer kept; it is not run again"
            )
        return outcome

    def take(self, id: int | str, outcome: T) -> None:
        """Note a new request, whose outcome may still be to come."""
        self._outcomes[id] = outcome
        if isinstance(id, int):
            self.newest = max(self.newest, id)
        while len(self._outcomes) > self._keep:
            oldest = next(iter(self._outcomes))
            if self._is_pending(self._outcomes[oldest]):
                return
            del self._outcomes[oldest]

    def renew(self, id: int, outcome: T, acknowledged: int | None) -> None:
        """`acknowledge` and `take` in one."""
        self.renew_all((self,), id, outcome, acknowledged)

    @classmethod
    def renew_all(cls, ledgers: "Iterable[Ledger[T]]", id: int, outcome: T, acknowledged: int | None) -> None:
        """`renew`, for many sessions that were asked as one."""
        arrived = -1 if acknowledged is None else acknowledged
        for ledger in ledgers:
            outcomes = ledger._outcomes
            if arrived >= ledger.newest:
                outcomes.clear()  # all arrived, so none is pending
                outcomes[id] = outcome
                ledger.newest = id
            else:
                ledger.acknowledge(arrived)
                ledger.take(id, outcome)

    def acknowledge(self, through: int) -> None:
        """The caller has every reply up to this number: they need not be kept."""
        for id in [id for id in self._outcomes if isinstance(id, int) and id <= through]:
            if not self._is_pending(self._outcomes[id]):
                del self._outcomes[id]

    def __len__(self) -> int:
        return len(self._outcomes)
