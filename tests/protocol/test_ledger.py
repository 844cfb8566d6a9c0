"""Exactly once, as a property: whatever is repeated, whenever, runs at most once."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import AnswerDropped, EnvironmentFailed, ProtocolError
from envtorch.protocol.batch import Share
from envtorch.protocol.calls import Call
from envtorch.protocol.encoding import Encoded
from envtorch.protocol.formats import JSON
from envtorch.protocol.ledger import CallOutcome, Ledger
from envtorch.protocol.wire import Reply


def noted(ledger: Ledger, id: int | str, digest: int | None = None, action: bytes = b"") -> CallOutcome:
    """A request that runs."""
    outcome = CallOutcome(Call("step", action), id)
    ledger.note(id, outcome, digest)
    return outcome


def answered(ledger: Ledger, id: int | str, size: int = 0, digest: int | None = None) -> None:
    """A request that has an answer of this size."""
    ledger.settle(noted(ledger, id, digest), bytes(size))


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12))), st.integers(1, 4))
def test_no_number_runs_twice(requests: list[tuple[int, int]], keep: int) -> None:
    ledger = Ledger(keep=keep)
    runs: list[int] = []
    for id, ack in requests:
        try:
            found = ledger.find(id)
        except ProtocolError:
            assert id in runs or id < max(runs), "refused only what was taken, or came out of order"
            continue
        if found is None:
            runs.append(id)
            answered(ledger, id)
        else:
            assert found.id == id
        ledger.acknowledge(ack)
    assert len(runs) == len(set(runs))


@given(st.lists(st.booleans(), max_size=40))
def test_what_is_pending_is_never_dropped(pendings: list[bool]) -> None:
    ledger = Ledger(keep=3)
    for id, pending in enumerate(pendings, start=1):
        outcome = noted(ledger, id)
        if not pending:
            ledger.settle(outcome, b"")
        ledger.acknowledge(id)
    for id, pending in enumerate(pendings, start=1):
        if pending:
            found = ledger.find(id)
            assert found is not None
            assert found.id == id


def test_texts_are_known_while_they_are_kept() -> None:
    ledger = Ledger(keep=2)
    for id in ("a", "b", "c"):
        answered(ledger, id)
    assert ledger.find("a") is None
    assert ledger.find("c") is not None
    assert len(ledger) == 2


def test_a_number_that_was_acknowledged_is_refused_by_name() -> None:
    ledger = Ledger()
    answered(ledger, 7)
    ledger.acknowledge(7)
    with pytest.raises(ProtocolError, match="request 7 was accepted before"):
        ledger.find(7)


def test_an_id_with_other_contents_is_refused() -> None:
    ledger = Ledger()
    answered(ledger, 1, digest=hash(b"left"))
    assert ledger.find(1, hash(b"left")) is not None
    with pytest.raises(ProtocolError, match="request 1 was accepted before, with different contents"):
        ledger.find(1, hash(b"right"))


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=30), st.integers(0, 100)
)
def test_answers_take_no_more_bytes_than_the_bound_and_the_newest_is_kept(
    requests: list[tuple[int, bool, bool]], bound: int
) -> None:
    ledger = Ledger(keep=12, keep_bytes=bound)
    waiting: list[CallOutcome] = []
    for id, (size, settles, acknowledges) in enumerate(requests, start=1):
        waiting.append(noted(ledger, id))
        if acknowledges:
            ledger.acknowledge(id - 1)
        if settles:
            outcome = waiting.pop(0)
            ledger.settle(outcome, bytes(size))
            assert outcome.id is not None
            assert ledger.find(outcome.id) is outcome, "the one that was settled last"
            assert ledger.size <= max(bound, size)
    for id in range(1, len(requests) + 1):
        with suppress(ProtocolError):
            assert ledger.find(id) is not None, "it would run again"
    ledger.acknowledge(len(requests))
    assert (ledger.size, len(ledger)) == (0, len(waiting))


def test_a_request_whose_answer_was_dropped_is_refused_and_told_why() -> None:
    ledger = Ledger(keep_bytes=100)
    for id in (1, 2, "text"):
        answered(ledger, id, size=80, digest=hash("left"))
    for id in (1, 2):
        with pytest.raises(
            AnswerDropped, match=f"request {id} was accepted before .* keeps 100 bytes"
        ) as told:
            ledger.find(id, hash("left"))
        assert told.value.details == {"limit": 100}
        with pytest.raises(ProtocolError, match="with different contents") as other:
            ledger.find(id, hash("right"))
        assert not isinstance(other.value, AnswerDropped)
    assert ledger.find("text", hash("left")) is not None
    answered(ledger, 3, size=80)
    with pytest.raises(AnswerDropped):
        ledger.find("text", hash("left"))


def test_an_answer_larger_than_the_bound_is_kept_until_the_next() -> None:
    ledger = Ledger(keep_bytes=100)
    answered(ledger, 1, size=1000)
    assert ledger.find(1) is not None
    answered(ledger, 2, size=1)
    assert ledger.find(2) is not None
    with pytest.raises(AnswerDropped):
        ledger.find(1)
    assert ledger.size == 1


def test_everything_that_an_outcome_keeps_is_counted() -> None:
    columns, text = b"c" * 500, "m" * 1000
    for result, error, size in (
        (b"r" * 30, None, 30),
        (Encoded("json", b"o" * 40, 1.0, False, b"m" * 2), None, 42),
        (Reply("forked", b"d" * 50), None, 50),
        (Share(columns, 3, JSON), None, 500),  # each share keeps the columns of all alive
        (None, EnvironmentFailed(text), 1000),
    ):
        ledger = Ledger()
        outcome = noted(ledger, 1, action=b"a" * 7)
        ledger.settle(outcome, result, error)
        assert 0 <= ledger.size - size - len(outcome.call.data) < 10


def test_settling_twice_is_counted_once() -> None:
    ledger = Ledger()
    outcome = noted(ledger, 1)
    ledger.settle(outcome, None, EnvironmentFailed("it was given up"))
    size = ledger.size
    ledger.settle(outcome, bytes(1000))
    assert ledger.size == size


def test_one_request_that_does_not_end_does_not_keep_the_others() -> None:
    ledger = Ledger(keep=3)
    noted(ledger, 1)
    for id in range(2, 50):
        answered(ledger, id)
    assert len(ledger) == 3
    assert ledger.find(1) is not None
