"""Exactly once, as a property: whatever is repeated, whenever, runs at most once."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ProtocolError
from envtorch.protocol.ledger import Ledger


@dataclass
class Outcome:
    id: int | str
    pending: bool = False


def fresh(keep: int = 128) -> Ledger[Outcome]:
    return Ledger(lambda outcome: outcome.pending, keep=keep)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12))), st.integers(1, 4))
def test_no_number_runs_twice(requests: list[tuple[int, int]], keep: int) -> None:
    ledger = fresh(keep)
    runs: list[int] = []
    for id, ack in requests:
        try:
            found = ledger.find(id)
        except ProtocolError:
            assert id in runs or id < max(runs), "refused only what was taken, or came out of order"
            continue
        if found is None:
            runs.append(id)
            ledger.note(id, Outcome(id))
        else:
            assert found.id == id
        ledger.acknowledge(ack)
    assert len(runs) == len(set(runs))


@given(st.lists(st.booleans(), max_size=40))
def test_what_is_pending_is_never_dropped(pendings: list[bool]) -> None:
    ledger = fresh(keep=3)
    for id, pending in enumerate(pendings, start=1):
        ledger.note(id, Outcome(id, pending))
        ledger.acknowledge(id)
    for id, pending in enumerate(pendings, start=1):
        if pending:
            found = ledger.find(id)
            assert found is not None
            assert found.id == id


def test_texts_are_known_while_they_are_kept() -> None:
    ledger = fresh(keep=2)
    for id in ("a", "b", "c"):
        ledger.note(id, Outcome(id))
    assert ledger.find("a") is None
    assert ledger.find("c") is not None
    assert len(ledger) == 2


def test_a_number_that_was_acknowledged_is_refused_by_name() -> None:
    ledger = fresh()
    ledger.note(7, Outcome(7))
    ledger.acknowledge(7)
    with pytest.raises(ProtocolError, match="request 7 was accepted before"):
        ledger.find(7)


def test_an_id_with_other_contents_is_refused() -> None:
    ledger = fresh()
    ledger.note(1, Outcome(1), digest=hash(b"left"))
    assert ledger.find(1, hash(b"left")) is not None
    with pytest.raises(ProtocolError, match="request 1 was accepted before, with different contents"):
        ledger.find(1, hash(b"right"))
