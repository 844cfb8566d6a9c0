"""Exactly once: which requests a session has accepted, and what came of them.

A request is noted before anything runs. What comes of it is a `CallOutcome`; a request that is
repeated gets the outcome of the first one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias

from envtorch.errors import AnswerDropped, EnvTorchError, ProtocolError
from envtorch.protocol.batch import Share
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.messages import write_json
from envtorch.protocol.wire import Reply, sent_details

__all__ = ["KEPT_BYTES", "KEPT_REQUESTS", "CallOutcome", "Digest", "Ledger", "digest_of"]

KEPT_REQUESTS = 128
"""How many requests of a session are known with their outcomes, if nobody acknowledges them."""

KEPT_BYTES = 8 * 1024 * 1024
"""How many bytes of outcomes a session keeps, if nobody acknowledges them. The newest is kept in any case."""


Digest: TypeAlias = int | Callable[[], int]
"""A digest of a request's contents, or what finds it out when the request is repeated."""


def digest_of(kind: str, data: bytes) -> int:
    """The digest of a request: the same bytes, asked for the same."""
    return hash((kind, data))


class Timer(Protocol):
    """What an event loop gives for a call that it makes later."""

    def cancel(self) -> None: ...


class CallOutcome:
    """What came of a call, or will. It is settled once; what comes later changes nothing."""

    __slots__ = (
        "_listeners", "began", "call", "deadline", "error", "id", "is_question", "is_ready", "is_settled",
        "result", "too_late",
    )  # fmt: skip

    def __init__(self, call: Call, id: int | str | None = None, *, is_question: bool = False) -> None:
        self.call = call
        self.id = id
        self.is_question = is_question
        """Whether the server made the call for somebody else than the session's caller."""
        self.result: Any = None
        self.error: EnvTorchError | None = None
        self.is_settled = False
        self.is_ready = True
        """Whether the call may begin. One that may not keeps its turn, and the calls after it wait."""
        self.began = 0.0
        self.deadline: Timer | None = None
        self.too_late: Callable[[Any], None] | None = None
        """Called with a result that came after the outcome was settled: where it has to be closed."""
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
            if self.too_late is not None and error is None:
                self.too_late(result)
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


@dataclass(slots=True)
class NotedRequest:
    """A request that was accepted: its outcome, and a digest of its contents."""

    outcome: CallOutcome | None
    """None for one whose answer was dropped."""
    digest: Digest | None
    size: int = 0
    """What is kept of it, in bytes, since it is settled."""

    def matches(self, digest: int | None) -> bool:
        """Whether a request of this digest can be the same one. None matches any."""
        if digest is None or self.digest is None:
            return True
        if not isinstance(self.digest, int):
            self.digest = self.digest()
        return digest == self.digest

    def drop_answer(self) -> None:
        """Keep nothing of it but its id, and its digest where that is known."""
        self.outcome, self.size = None, 0
        if not isinstance(self.digest, int):
            self.digest = None

    @property
    def is_pending(self) -> bool:
        return self.outcome is not None and not self.outcome.is_settled


class Ledger:
    """Outcomes by request id, the newest kept: at most `keep` of them, with at most `keep_bytes` in all.

    Numbers grow: a number at or below the highest one accepted has been accepted, even when its outcome is no
    longer kept, and is then refused rather than run again. Texts (HTTP's `request_id`) are known only while
    they are among the `keep` newest. What is pending is never dropped. An id that comes again with another
    digest is refused: it is a different request.

    Where there are too many bytes, answers are dropped, oldest first, and not the ids and digests of their
    requests: a repeat gets `AnswerDropped`. The answer that was settled last is kept whatever its size, as
    its caller may not have it yet.
    """

    def __init__(self, *, keep: int = KEPT_REQUESTS, keep_bytes: int = KEPT_BYTES) -> None:
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._entries: dict[int | str, NotedRequest] = {}
        self._bytes = 0
        self._acknowledged = 0
        self.newest = 0
        """The highest number accepted."""

    def find(self, id: int | str, digest: int | None = None) -> CallOutcome | None:
        """The outcome of a request that was accepted; None for a new one. Raises `ProtocolError`.

        A `digest` of None matches any.
        """
        entry = self._entries.get(id)
        if entry is None:
            if isinstance(id, int) and id <= self.newest:
                refusal = ProtocolError if id <= self._acknowledged else AnswerDropped
                raise refusal(
                    f"request {id} was accepted before, and its reply is no longer kept; it is not run again"
                )
            return None
        if not entry.matches(digest):
            raise ProtocolError(f"request {id} was accepted before, with different contents; it is not run")
        if entry.outcome is None:
            raise AnswerDropped(
                f"request {id} was accepted before and is not run again, and its reply was dropped: a "
                f"session keeps {self._keep_bytes:,} bytes of replies, and always the newest. Acknowledge "
                "replies that arrived with `ack`, and let fewer requests with large replies wait at a time",
                limit=self._keep_bytes,
            )
        return entry.outcome

    def note(
        self,
        id: int | str,
        outcome: CallOutcome,
        digest: Digest | None = None,
        acknowledged: int | None = None,
    ) -> None:
        """Note a new request, before it runs; and that the caller has all replies up to `acknowledged`."""
        if acknowledged is not None:
            self.acknowledge(acknowledged)
        self._entries[id] = NotedRequest(outcome, digest)
        if isinstance(id, int) and id > self.newest:
            self.newest = id
        if len(self._entries) > self._keep:
            settled = (id for id, entry in self._entries.items() if not entry.is_pending)
            self._forget(list(islice(settled, len(self._entries) - self._keep)))

    def settle(self, outcome: CallOutcome, result: Any, error: EnvTorchError | None = None) -> None:
        """Settle an outcome, which may have been noted or not, and keep its answer within the bounds."""
        entry = self._entries.get(outcome.id) if outcome.id is not None else None
        if entry is not None and entry.outcome is outcome and not outcome.is_settled:
            entry.size = _size_of(outcome.call, result, error)
            self._bytes += entry.size
            if self._bytes > self._keep_bytes:
                self._drop_answers(entry)
        outcome.settle(result, error)

    def _drop_answers(self, newest: NotedRequest) -> None:
        """Drop answers but the newest, oldest first, until the rest is within the bound."""
        for entry in self._entries.values():
            if self._bytes <= self._keep_bytes:
                return
            if entry is not newest and not entry.is_pending:
                self._bytes -= entry.size
                entry.drop_answer()

    def acknowledge(self, through: int) -> None:
        """The caller has every reply up to this number: they need not be kept."""
        self._acknowledged = max(self._acknowledged, through)
        self._forget(
            [
                id
                for id, entry in self._entries.items()
                if isinstance(id, int) and id <= through and not entry.is_pending
            ]
        )

    def _forget(self, ids: Sequence[int | str]) -> None:
        for id in ids:
            self._bytes -= self._entries.pop(id).size

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._bytes


def _size_of(call: Call, result: Any, error: EnvTorchError | None) -> int:
    """About how many bytes the outcome of a call takes, the call itself included."""
    size = len(call.data) + len(call.arguments)
    if error is not None:
        return size + len(error.message) + len(write_json(sent_details(error)))
    if isinstance(result, bytes):
        return size + len(result)
    return size + (result.size if isinstance(result, Encoded | Reply | Share) else 0)
