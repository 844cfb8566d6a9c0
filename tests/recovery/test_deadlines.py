"""A call's own deadline bounds a recovery, and the next call goes on with it."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envtorch.errors import ConnectFailed, SessionLost, TimedOut
from envtorch.protocol.flow import drive
from envtorch.protocol.reconnect import Cut, Late, Receive, Send, SocketFlow
from envtorch.protocol.wire import Ask
from tests.recovery.test_replaying import Cluster, RecoveringClient, Remembering

STEPS = 10


class SlowCluster(Cluster):
    """Servers that take their time over every answer."""

    def __init__(self, server: Remembering, faults: Iterable[int] = (), deaths: Iterable[bool] = ()) -> None:
        super().__init__(server, faults, deaths)
        self.answer_s = 0.0
        self._ready_at = 0.0

    def act(self, wanted: Any) -> Any:
        if isinstance(wanted, Receive) and self._inbox and not self._is_dead:
            if self._ready_at > wanted.deadline:
                self.now = max(self.now, wanted.deadline)
                raise Late
            self.now = max(self.now, self._ready_at)
        result = super().act(wanted)
        if isinstance(wanted, Send):
            self._ready_at = self.now + self.answer_s
        return result


class Withdrawn(BaseException):
    """What ends a call and leaves the socket as it was; asyncio's is `CancelledError`."""


def lost_after(steps: int, answer_s: float, recover_s: float = 100.0) -> RecoveringClient:
    """A client whose server died after so many steps; the next one is slow."""
    client = RecoveringClient(SlowCluster(Remembering()), recover_s, (Withdrawn,))
    for n in range(steps + 1):
        client.call(n, "step" if n else "reset")
    client.network.die()
    assert isinstance(client.network, SlowCluster)
    client.network.answer_s = answer_s
    return client


def histories(client: RecoveringClient) -> list[list[int]]:
    servers = client.network.servers
    return [*servers.ended, *(list(ledger.values()) for ledger in servers.ledgers.values())]


def test_the_deadline_of_a_call_bounds_a_recovery_and_the_next_call_goes_on_with_it() -> None:
    client = lost_after(STEPS, answer_s=1.0)
    timeouts = 0
    while True:
        began = client.network.now
        try:
            assert client.call(STEPS + 1, timeout_s=2.5) == list(range(STEPS + 2))
            break
        except TimedOut as error:
            assert error.details == {"is_connected": False, "is_recovering": True}
            assert client.network.now - began <= 2.5, "no longer than the caller said"
            timeouts += 1
    assert timeouts == 5, "each call went on where the one before had stopped"
    assert client.network.moves == 1, "on one other server"
    assert histories(client) == [list(range(STEPS + 1)), list(range(STEPS + 2))], "each step once"


def test_time_between_calls_does_not_count_as_recovery() -> None:
    client = lost_after(STEPS, answer_s=1.0, recover_s=20.0)
    with pytest.raises(TimedOut, match="was not run within 2 s"):
        client.call(STEPS + 1, timeout_s=2)
    client.network.now += 1000
    assert client.call(STEPS + 1) == list(range(STEPS + 2))
    client.network.die()
    with pytest.raises(TimedOut):
        client.call(STEPS + 2, timeout_s=2)
    assert isinstance(client.network, SlowCluster)
    client.network.answer_s = 1000.0
    with pytest.raises(SessionLost, match="was not recovered within 20 s"):
        client.call(STEPS + 2)


def test_a_reset_ends_a_recovery_that_is_under_way() -> None:
    client = lost_after(STEPS, answer_s=1.0)
    with pytest.raises(TimedOut):
        client.call(STEPS + 1, timeout_s=2.5)
    assert client.call(0, "reset")[-1] == 0
    assert client.call(1)[-2:] == [0, 1]
    assert [played.ask.data for played in client.flow.log.plays] == [b"0", b"1"], "the new episode"
    assert client.network.moves == 1


@pytest.mark.parametrize("timeout_s", [1.5, 2.5], ids=["being opened", "played on"])
def test_a_client_that_is_closed_during_a_recovery_ends_the_session_that_is(timeout_s: float) -> None:
    client = lost_after(STEPS, answer_s=1.0)
    with pytest.raises(TimedOut):
        client.call(STEPS + 1, timeout_s=timeout_s)
    assert client.network.servers.ledgers, "there is a session on the other server"
    drive(client.flow.close(), client.network.act)
    assert not client.network.servers.ledgers


@pytest.mark.parametrize("when", range(1, 40))
def test_a_call_that_is_left_anywhere_and_a_client_that_is_closed_leave_no_session(when: int) -> None:
    client = lost_after(STEPS, answer_s=0.0)
    leave(client.flow.exchange(Ask("step", b"%d" % (STEPS + 1))), client, when)
    drive(client.flow.interrupted(), client.network.act)
    drive(client.flow.close(), client.network.act)
    assert not client.network.servers.ledgers


def leave(flow: SocketFlow[Any], client: RecoveringClient, when: int) -> None:
    """Leave a flow between two of the things that it does, as an interruption can."""
    try:
        wanted = next(flow)
        for _ in range(when):
            try:
                got = client.network.act(wanted)
            except (Cut, Late) as error:
                wanted = flow.throw(error)
            else:
                wanted = flow.send(got)
    except StopIteration:
        pass  # it has ended before
    flow.close()


@pytest.mark.parametrize("when", range(1, 40))
def test_a_cancelled_call_leaves_the_recovery_to_the_next(when: int) -> None:
    client = lost_after(STEPS, answer_s=1.0)
    count = 0

    def act(wanted: Any) -> Any:
        nonlocal count
        count += 1
        if count == when:
            raise Withdrawn
        return client.network.act(wanted)

    try:
        drive(client.flow.exchange(Ask("step", b"%d" % (STEPS + 1))), act)
    except Withdrawn:
        try:
            assert client.call(STEPS + 2)[: STEPS + 1] == list(range(STEPS + 1))
        except SessionLost as error:
            assert "was not answered" in error.message, "the call itself had been sent"
    for history in histories(client):
        assert len(set(history)) == len(history), "nothing ran twice in one session"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.booleans(), max_size=60),
    st.lists(st.sampled_from([None, 0.5, 1.5, 4.0, 20.0]), min_size=1, max_size=30),
)
def test_whatever_fails_and_times_out_no_call_gets_a_wrong_answer(
    faults: list[int], deaths: list[bool], timeouts: list[float | None]
) -> None:
    server = Remembering()
    network = SlowCluster(server)
    client = RecoveringClient(network)
    client.call(0, "reset")
    network.faults, network.deaths, network.answer_s = iter(faults), iter(deaths), 1.0
    acknowledged = [0]
    for n, timeout_s in enumerate(timeouts, 1):
        try:
            history = client.call(n, timeout_s=timeout_s)
        except (TimedOut, SessionLost, ConnectFailed):
            continue  # a loss that is typed
        assert [m for m in history if m in acknowledged] == acknowledged, "all of it, in order"
        assert history[-1] == n
        acknowledged.append(n)
    for history in histories(client):
        assert len(set(history)) == len(history), "nothing ran twice in one session"
