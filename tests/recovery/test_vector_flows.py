"""The flow that recovers the sessions of a vector, fed by hand: servers that die at any point."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envtorch.client.vector_replaying import ReplayingSessions
from envtorch.errors import ConnectFailed, EnvTorchError, SessionLost, TimedOut, Unsupported
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.flow import drive
from envtorch.protocol.formats import JSON
from envtorch.protocol.reconnect import Receive, Reconnecting, SocketFlow, connected
from tests.protocol.test_reconnect import TIMINGS
from tests.recovery.test_deadlines import SlowCluster
from tests.recovery.test_replaying import Cluster, Remembering

PLACES = 3
STEPS = 6


class RecoveringVector:
    """A vector whose sessions are recovered. A call's number says its place, too: 1007 is 7 at place 1."""

    def __init__(self, network: Cluster, recover_s: float = 100.0) -> None:
        self.network = network
        connection = drive(self._opened(), network.act)
        self.sessions = ReplayingSessions(connection, recover_s=recover_s, clock=network.clock)

    def _opened(self) -> SocketFlow[Reconnecting]:
        yield from connected(TIMINGS, self.network.clock)
        channels = ClientChannels(JSON, PLACES)
        connection = Reconnecting(channels, TIMINGS, clock=self.network.clock, is_connected=True)
        yield from connection.open()
        return connection

    def call(
        self, n: int, kind: str = "step", places: Any = range(PLACES), timeout_s: float | None = None
    ) -> dict[int, list[int] | EnvTorchError]:
        """What each place says of its history, without its own number; or its error."""
        asked: dict[int, Any] = {}
        found: dict[int, list[int] | EnvTorchError] = {}
        for place in places:
            refusal = self.sessions.refusal(place)
            if refusal is not None and kind == "reset":
                self.sessions.renew(place)
            elif refusal is not None:
                found[place] = refusal
                continue
            asked[place] = b"%d" % (1000 * place + n)
        if asked:
            drive(self.sessions.ask_each(kind, asked, timeout_s), self.network.act)
        while self.sessions.owed:
            for arrived in drive(self.sessions.arrivals(), self.network.act):
                (place,) = arrived.channels
                assert place not in found, "one answer to one request"
                if arrived.error is not None:
                    found[place] = arrived.error
                else:
                    history = json.loads(bytes(arrived.payload))["history"]
                    assert {number // 1000 for number in history} == {place}, "its own session's"
                    found[place] = [number % 1000 for number in history]
        assert found.keys() == set(places)
        return found

    def histories(self) -> list[list[int]]:
        servers = self.network.servers
        return [*servers.ended, *(list(ledger.values()) for ledger in servers.ledgers.values())]


def same(history: list[int]) -> dict[int, list[int]]:
    return dict.fromkeys(range(PLACES), history)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_every_episode_of_a_vector_survives_every_death_of_its_server(deaths: list[bool]) -> None:
    vector = RecoveringVector(Cluster(Remembering()))
    vector.network.deaths = iter([*deaths, *[False] * 200][:200])
    lost: set[int] = set()
    for n in range(STEPS):
        for place, said in vector.call(n, "step" if n else "reset").items():
            if isinstance(said, EnvTorchError):
                assert "sessions in a row were lost" in said.message, "three deaths in one call"
                lost.add(place)
            else:
                assert said == list(range(n + 1)), "as if nothing had happened"
                assert place not in lost
    for history in vector.histories():
        assert history == [history[0] + n for n in range(len(history))], "on each server once, and in order"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.booleans(), max_size=60),
    st.lists(
        st.tuples(
            st.sets(st.integers(0, PLACES - 1), min_size=1), st.sampled_from([None, 0.5, 1.5, 4.0, 20.0])
        ),
        min_size=1,
        max_size=20,
    ),
)
def test_whatever_fails_no_place_gets_a_wrong_answer(
    faults: list[int], deaths: list[bool], calls: list[tuple[set[int], float | None]]
) -> None:
    network = SlowCluster(Remembering())
    vector = RecoveringVector(network)
    vector.call(0, "reset")
    network.faults, network.deaths, network.answer_s = iter(faults), iter(deaths), 1.0
    acknowledged: dict[int, list[int]] = {place: [0] for place in range(PLACES)}
    for n, (places, timeout_s) in enumerate(calls, 1):
        for place, said in vector.call(n, places=sorted(places), timeout_s=timeout_s).items():
            if isinstance(said, EnvTorchError):
                assert isinstance(said, TimedOut | SessionLost | ConnectFailed), "a loss that is typed"
                continue
            assert [m for m in said if m in acknowledged[place]] == acknowledged[place], "all, in order"
            assert said[-1] == n
            acknowledged[place].append(n)
    for history in vector.histories():
        assert len(set(history)) == len(history), "nothing ran twice in one session"


@pytest.mark.parametrize("wild", range(STEPS))
def test_one_place_that_differs_is_lost_at_its_step_and_the_others_go_on(wild: int) -> None:
    server = Remembering()
    server.wild_step = 1000 + wild
    vector = RecoveringVector(Cluster(server))
    for n in range(STEPS):
        vector.call(n, "step" if n else "reset")
    vector.network.die()
    said = vector.call(STEPS)
    assert (said[0], said[2]) == (list(range(STEPS + 1)), list(range(STEPS + 1)))
    error = said[1]
    assert isinstance(error, SessionLost)
    assert error.details == {"step": wild}
    assert len(server.ledgers) == 2, "the session that differed was closed"
    assert vector.call(STEPS + 1, places=[1]) == {1: error}
    assert vector.call(0, "reset", places=[1]) == {1: [0]}
    assert vector.call(1, places=[1]) == {1: [0, 1]}


def test_the_deadline_of_a_vectors_call_bounds_a_recovery_and_the_next_call_goes_on_with_it() -> None:
    network = SlowCluster(Remembering())
    vector = RecoveringVector(network)
    for n in range(STEPS):
        vector.call(n, "step" if n else "reset")
    network.die()
    network.answer_s = 1.0
    timeouts = 0
    while True:
        began = network.now
        said = vector.call(STEPS, timeout_s=2.5)
        if said == same(list(range(STEPS + 1))):
            break
        assert network.now - began <= 2.5, "no longer than the caller said"
        for error in said.values():
            assert isinstance(error, TimedOut)
            assert error.details["is_recovering"] is True
        timeouts += 1
    assert timeouts > 1
    assert len(vector.histories()) == 2 * PLACES, "each call went on where the one before had stopped"


def test_a_call_that_was_not_answered_makes_its_own_place_unrecoverable() -> None:
    vector = RecoveringVector(Cluster(Remembering()))
    vector.call(0, "reset")
    vector.network.faults = iter([0, 3, 0, 3])  # sent; silence, a ping, silence
    said = vector.call(1, places=[0], timeout_s=1.0)
    assert isinstance(said[0], TimedOut)
    vector.network.die()
    said = vector.call(2)
    assert isinstance(said[0], SessionLost)
    assert "step 1 was not answered" in said[0].message
    assert (said[1], said[2]) == ([0, 2], [0, 2])


def test_a_recovery_of_a_vector_that_takes_too_long_is_given_up_for_each_place() -> None:
    vector = RecoveringVector(Cluster(Remembering()), recover_s=30.0)
    vector.call(0, "reset")
    vector.network.die()
    vector.network.faults = iter([0, *[1] * 1000])  # every connection is refused
    for error in vector.call(1).values():
        assert isinstance(error, SessionLost)
        assert "not recovered within 30 s" in error.message
    vector.network.faults = iter([])
    assert vector.call(0, "reset") == same([0]), "a reset goes on"


def test_an_environment_that_says_it_is_not_deterministic_is_refused_by_vectors() -> None:
    server = Remembering()
    server.deterministic = False
    with pytest.raises(Unsupported, match="DETERMINISTIC = False"):
        RecoveringVector(Cluster(server))


@pytest.mark.parametrize("at", range(12))
def test_a_vectors_recovery_that_was_interrupted_begins_again_with_other_sessions(at: int) -> None:
    vector = RecoveringVector(Cluster(Remembering()))
    for n in range(STEPS):
        vector.call(n, "step" if n else "reset")
    vector.network.die()
    heard = iter(range(at))

    def interrupted(wanted: Any) -> Any:
        if isinstance(wanted, Receive) and next(heard, None) is None:
            raise KeyboardInterrupt
        return vector.network.act(wanted)

    states = {place: b"%d" % (1000 * place + 99) for place in range(PLACES)}
    drive(vector.sessions.ask_each("state", states, None), vector.network.act)
    try:
        while vector.sessions.owed:
            drive(vector.sessions.arrivals(), interrupted)
    except KeyboardInterrupt:
        drive(vector.sessions.interrupted(), vector.network.act)
    for said in vector.call(STEPS).values():
        assert isinstance(said, list)
        assert [n for n in said if n != 99] == list(range(STEPS + 1))
    assert len(vector.network.servers.ledgers) == PLACES, "those that were half played again are closed"
    for history in vector.histories():
        assert len(set(history)) == len(history), "nothing ran twice in one session"
