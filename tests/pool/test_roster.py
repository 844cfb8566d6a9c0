"""Placement and waiting, by hand and by hypothesis: no thread, no server."""

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import CapacityReached, EnvTorchError, ProviderFailed, SessionLost
from envtorch.pool.roster import Batch, Replica, Roster, Ticket


def roster_of(*capacities: int, max_waiting: int | None = None) -> tuple[Roster, list[Replica]]:
    roster = Roster(max_waiting=max_waiting)
    replicas = [Replica(slot, f"http://{slot}", capacity) for slot, capacity in enumerate(capacities)]
    for replica in replicas:
        roster.join(replica)
    return roster, replicas


def place(ticket: Ticket) -> int | None:
    return ticket.granted.result().slot if ticket.granted.done() else None


def test_sessions_go_where_most_room_is() -> None:
    roster, _ = roster_of(1, 3)
    assert [place(roster.ask()) for _ in range(5)] == [1, 1, 0, 1, None]


def test_those_who_wait_are_served_in_order() -> None:
    roster, (only,) = roster_of(1)
    first, second, third = (roster.ask() for _ in range(3))
    assert (place(first), place(second), place(third)) == (0, None, None)
    roster.give_back(only)
    assert (place(second), place(third)) == (0, None)


def test_nobody_is_sent_to_a_replica_that_is_dead_or_in_doubt() -> None:
    roster, (one, two) = roster_of(5, 1)
    roster.doubt(one)
    assert place(roster.ask()) == 1
    waiting = roster.ask()
    assert place(waiting) is None
    roster.trust(one)
    assert place(waiting) == 0
    roster.leave(one)
    roster.give_back(two)
    assert place(roster.ask()) == 1
    assert place(roster.ask()) is None


def test_a_session_on_a_dead_replica_is_given_back_without_a_trace() -> None:
    roster, (dead,) = roster_of(1)
    assert place(roster.ask()) == 0
    waiting = roster.ask()
    roster.leave(dead)
    roster.give_back(dead)
    assert place(waiting) is None
    roster.join(Replica(0, "http://successor", 1))
    assert waiting.granted.result().url == "http://successor"


def test_who_gives_up_frees_the_turn() -> None:
    roster, (only,) = roster_of(1)
    first, second, third = (roster.ask() for _ in range(3))
    roster.withdraw(second)
    roster.give_back(only)
    assert place(third) == 0
    roster.withdraw(third)  # granted in the moment it gave up
    assert place(roster.ask()) == 0
    assert isinstance(first.granted, Future)


def test_too_many_waiting_is_an_error_at_once() -> None:
    roster, _ = roster_of(1, max_waiting=1)
    roster.ask()
    roster.ask()
    with pytest.raises(CapacityReached, match="1 others wait"):
        roster.ask()


def test_an_error_is_another_object_for_each_who_is_told() -> None:
    for tell in (Roster.close, Roster.refuse):
        roster = Roster()
        waiting = [roster.ask() for _ in range(2)]
        why = ProviderFailed("no room", logs="full")
        why.__cause__ = OSError("the disk")
        tell(roster, why)
        told = [ticket.granted.exception() for ticket in waiting]
        for _ in range(2):
            with pytest.raises(ProviderFailed, match="no room") as caught:
                roster.ask()
            told.append(caught.value)
        assert len({id(error) for error in told}) == 4
        for error in told:
            assert isinstance(error, EnvTorchError)
            assert (error.details, error.__cause__) == (why.details, why.__cause__)
        assert why.__traceback__ is None, "it keeps nobody's frames"


def test_an_outage_is_told_to_those_for_whom_it_lasts_too_long() -> None:
    roster = Roster()
    at_once, later = roster.ask(), roster.ask(Batch(outage_s=10.0))
    why = ProviderFailed("no room")
    roster.refuse(why, now=100.0)
    assert (at_once.granted.done(), later.granted.done()) == (True, False)
    with pytest.raises(ProviderFailed):
        roster.ask(now=101.0)
    latest = roster.ask(Batch(outage_s=10.0), now=109.0)
    roster.refuse(why, now=110.0)
    assert (later.granted.done(), latest.granted.done()) == (True, True)
    patient = roster.ask(Batch(outage_s=60.0), now=111.0)
    roster.join(Replica(0, "http://0", 1))
    assert place(patient) == 0


def test_nobody_of_a_batch_that_ended_waits() -> None:
    roster, (only,) = roster_of(1)
    batch = Batch()
    first, one_of_it, other = roster.ask(), roster.ask(batch), roster.ask()
    roster.end(batch, SessionLost("left"))
    assert isinstance(one_of_it.granted.exception(), SessionLost)
    with pytest.raises(SessionLost, match="left"):
        roster.ask(batch)
    assert place(first) == 0
    roster.give_back(only)
    assert place(other) == 0


def test_closing_tells_all_who_wait_and_all_who_come() -> None:
    roster, _ = roster_of(1)
    roster.ask()
    waiting = roster.ask()
    roster.close(SessionLost("closed"))
    assert isinstance(waiting.granted.exception(), SessionLost)
    with pytest.raises(SessionLost):
        roster.ask()


@given(
    capacities=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    moves=st.lists(
        st.sampled_from(["ask", "back", "withdraw", "die", "join", "doubt", "trust"]), max_size=60
    ),
    data=st.data(),
)
def test_no_replica_is_overfull_and_nobody_waits_while_there_is_room(
    capacities: list[int], moves: list[str], data: st.DataObject
) -> None:
    roster, _ = roster_of(*capacities)
    held: list[Replica] = []
    waiting: list[Ticket] = []
    for move in moves:
        if move == "ask":
            waiting.append(roster.ask())
        elif move == "back" and held:
            roster.give_back(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif move == "withdraw" and waiting:
            roster.withdraw(waiting.pop())
        elif move == "join":
            roster.join(Replica(9, "http://new", 2))
        elif roster.replicas and move in ("die", "doubt", "trust"):
            chosen = roster.replicas[data.draw(st.integers(0, len(roster.replicas) - 1))]
            {"die": roster.leave, "doubt": roster.doubt, "trust": roster.trust}[move](chosen)
        held += [ticket.granted.result() for ticket in waiting if ticket.granted.done()]
        waiting = [ticket for ticket in waiting if not ticket.granted.done()]
        for replica in roster.replicas:
            assert 0 <= replica.busy <= replica.capacity
            assert replica.busy == held.count(replica)
        assert roster.waiting == len(waiting)
        assert not waiting or not any(replica.free for replica in roster.replicas)
