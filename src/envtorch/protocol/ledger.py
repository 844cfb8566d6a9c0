"""Exactly once: which requests a session has accepted, and what came of them.

A request is noted before anything runs. What comes of it is a `CallOutcome`; a request that is
repeated gets the outcome of the first one.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from envtorch.errors import EnvTorchError, ProtocolError
from envtorch.protocol.calls import Call

__all__ = ["CallOutcome", "Ledger"]

T = TypeVar("T")


class Timer(Protocol):
    """What an event loop gives for a call that it makes later."""

    def cancel(self) -> None: ...


class CallOutcome:
    """What came of a call, or will. It is settled once; what comes later changes nothing."""

    __slots__ = ("_listeners", "began", "call", "deadline", "error", "id", "is_settled", "result")

    def __init__(self, call: Call, id: int | str | None = None) -> None:
        self.call = call
        self.id = id
        self.result: Any = None
        self.error: EnvTorchError | None = None
        self.is_settled = False
        self.began = 0.0
        self.deadline: Timer | None = None
        self._listeners: list[Callable[[CallOutcome], None]] = []

    @classmethod
    def refused(cls, call: Call, error: EnvTorchError) -> "CallOutcome":
        """The outcome of a call that was not made."""
        outcome = cls(call)
        outcome.settle(None, error)
        return outcome

    def settle(self, result: Any, error: EnvTorchError | None = None) -> None:
        """Note what came of the call, and tell whoever waits. Only the first time counts."""
        if self.is_settled:
            return
        self.is_settled = True
        self.result, self.error = result, error
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
        listeners, self._listeners = self._listeners, []
        for tell in listeners:
            tell(self)

    def then(self, tell: "Callable[[CallOutcome], None]") -> None:
        """Call `tell` with this outcome: now if it is settled, otherwise once it is."""
        if self.is_settled:
            tell(self)
        else:
            self._listeners.append(tell)


class Ledger(Generic[T]):
    """Outcomes by request id, the newest kept.

    Numbers grow: a number at or below the highest one accepted has been accepted, even when its outcome is no
    longer kept, and is then refused rather than run again. Texts (HTTP's `request_id`) are known only while
    they are kept. What `is_pending` is never dropped. An id that comes again with another `digest` is
    refused: it is a different request.
    """

    def __init__(self, is_pending: Callable[[T], bool], *, keep: int = 128) -> None:
        self._is_pending = is_pending
        self._keep = keep
        self._entries: dict[int | str, tuple[T, int | None]] = {}
        self.newest = 0
        """The highest number accepted."""

    def find(self, id: int | str, digest: int | None = None) -> T | None:
        """The outcome of a request that was accepted; None for a new one. Raises `ProtocolError`.

        A `digest` of None matches any.
        """
        entry = self._entries.get(id)
        if entry is None:
            if isinstance(id, int) and id <= self.newest:
                raise ProtocolError(
                    f"request {id} was accepted before, and its reply is no longer kept; it is not run again"
                )
            return None
        outcome, noted = entry
        if digest is not None and noted is not None and digest != noted:
            raise ProtocolError(f"request {id} was accepted before, with different contents; it is not run")
        return outcome

    def note(
        self, id: int | str, outcome: T, digest: int | None = None, acknowledged: int | None = None
    ) -> None:
        """Note a new request, before it runs; and that the caller has all replies up to `acknowledged`."""
        if acknowledged is not None:
            self.acknowledge(acknowledged)
        self._entries[id] = (outcome, digest)
        if isinstance(id, int) and id > self.newest:
            self.newest = id
        while len(self._entries) > self._keep:
            oldest = next(iter(self._entries))
            if self._is_pending(self._entries[oldest][0]):
                return
            del self._entries[oldest]

    def acknowledge(self, through: int) -> None:
        """The caller has every reply up to this number: they need not be kept."""
        if not self._entries:
            return
        for id in [id for id in self._entries if isinstance(id, int) and id <= through]:
            if not self._is_pending(self._entries[id][0]):
                del self._entries[id]

    def __len__(self) -> int:
        return len(self._entries)
