"""The flow that recovers a session, fed by hand: servers that die at any point, with all their sessions."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envtorch.client.episode_log import EpisodeLog
from envtorch.client.replaying import Replaying
from envtorch.errors import ConnectFailed, EnvTorchError, SessionLost, TimedOut, Unsupported
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.flow import drive
from envtorch.protocol.formats import JSON
from envtorch.protocol.reconnect import Move, Receive, Reconnecting, Send, SocketFlow, connected
from envtorch.protocol.wire import Answer, Ask
from tests.protocol.test_reconnect import TIMINGS, Network, Server

STEPS = 6


class Remembering(Server):
    """Answers a call with all the calls that its session has had."""

    def __init__(self) -> None:
        super().__init__()
        self.wild_step: int | None = None
        self.deaths = 0
        self.ended: list[list[Any]] = []
        self.deterministic: bool | None = None

    def answer(self, asked: Any, held: dict[int, str]) -> Any:
        reply = super().answer(asked, held)
        if reply["type"] == "observation":
            ledger = self.ledgers[held[asked.get("ch", 0)]]
            history = [data for id, data in ledger.items() if id <= asked["id"]]
            wild = self.deaths if history[-1] == self.wild_step else 0
            reply["data"] = {"history": history, "wild": wild}
        elif reply["type"] == "session":
            reply["data"] = {"deterministic": self.deterministic}
        return reply

    def die(self) -> None:
        self.deaths += 1
        self.ended += [list(ledger.values()) for ledger in self.ledgers.values()]
        self.ledgers.clear()


class Cluster(Network):
    """A network whose servers die: all sessions are gone, and another server is there at once."""

    def __init__(self, server: Remembering, faults: Iterable[int] = (), deaths: Iterable[bool] = ()) -> None:
        super().__init__(server, faults)
        self.servers = server
        self.deaths = iter(deaths)
        self.moves = 0

    def act(self, wanted: Any) -> Any:
        if isinstance(wanted, Move):
            self.moves += 1
            return "http://another"
        if isinstance(wanted, Send | Receive) and self._inbox is not None and next(self.deaths, False):
            self.die()
        return super().act(wanted)

    def die(self) -> None:
        self.servers.die()
        self._is_dead = True


class RecoveringClient:
    """A client of one session that is recovered."""

    def __init__(
        self,
        network: Cluster,
        recover_s: float = 100.0,
        unharmful: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.network = network
        session = drive(self.connect(), network.act)
        drive(session.open(), network.act)
        self.flow = Replaying(
            session,
            self.connect,
            EpisodeLog(),
            recover_s=recover_s,
            clock=network.clock,
            unharmful=unharmful,
        )

    def connect(self) -> SocketFlow[Reconnecting]:
        yield from connected(TIMINGS, self.network.clock)
        return Reconnecting(ClientChannels(JSON), TIMINGS, clock=self.network.clock, is_connected=True)

    def call(self, n: int, kind: str = "step", timeout_s: float | None = None) -> list[int]:
        answer = drive(self.flow.exchange(Ask(kind, b"%d" % n), timeout_s), self.network.act)
        history: list[int] = answer.expect("observation")["history"]
        return history


@settings(max_examples=300, deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_an_episode_survives_every_death_of_its_server(deaths: list[bool]) -> None:
    server = Remembering()
    client = RecoveringClient(Cluster(server))
    client.network.deaths = iter([*deaths, *[False] * 200][:200])
    try:
        assert client.call(0, "reset") == [0]
        for n in range(1, STEPS):
            assert client.call(n) == list(range(n + 1)), "as if nothing had happened"
    except SessionLost as error:
        assert "sessions in a row were lost" in error.message, "three deaths in one call"
    for history in [*server.ended, *(list(ledger.values()) for ledger in server.ledgers.values())]:
        assert history == list(range(len(history))), "on each server once, and in order"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.booleans(), max_size=60))
def test_whatever_fails_no_call_gets_a_wrong_answer(faults: list[int], deaths: list[bool]) -> None:
    server = Remembering()
    network = Cluster(server, iter(faults), iter(deaths))
    try:
        client = RecoveringClient(network)
        client.call(0, "reset")
    except EnvTorchError:
        return
    acknowledged = [0]
    for n in range(1, STEPS):
        try:
            history = client.call(n)
        except (TimedOut, SessionLost, ConnectFailed):
            continue  # a loss that is typed
        assert [m for m in history if m in acknowledged] == acknowledged, "all of it, in order"
        assert history[-1] == n
        acknowledged.append(n)
    for history in [*server.ended, *(list(ledger.values()) for ledger in server.ledgers.values())]:
        assert len(set(history)) == len(history), "nothing ran twice in one session"


@pytest.mark.parametrize("wild", range(STEPS))
def test_an_answer_that_differs_in_the_replay_is_found_at_its_step(wild: int) -> None:
    server = Remembering()
    server.wild_step = wild
    client = RecoveringClient(Cluster(server))
    for n in range(STEPS):
        client.call(n, "step" if n else "reset")
    client.network.die()
    with pytest.raises(SessionLost, match="not deterministic") as caught:
        client.call(STEPS)
    assert caught.value.details == {"step": wild}
    assert not server.ledgers, "the session that diverged was closed"
    with pytest.raises(SessionLost, match="not deterministic"):
        client.call(STEPS)
    assert client.call(0, "reset") == [0], "a reset goes on with another session"


def test_a_call_that_was_not_answered_makes_a_recovery_impossible_until_the_next_reset() -> None:
    client = RecoveringClient(Cluster(Remembering()))
    client.call(0, "reset")
    client.network.faults = iter([0, 3, 0, 3])  # sent; silence, a ping, silence
    with pytest.raises(TimedOut):
        client.call(1, timeout_s=1.0)
    assert client.call(2)[-1] == 2, "the session itself goes on"
    client.network.die()
    with pytest.raises(SessionLost, match="step 1 was not answered"):
        client.call(3)
    assert client.call(0, "reset") == [0]
    client.network.die()
    assert client.call(1) == [0, 1]


def test_a_call_that_ends_every_session_it_is_sent_to_is_given_up() -> None:
    server = Remembering()
    client = RecoveringClient(Cluster(server))
    client.call(0, "reset")

    def answer(asked: Any, held: dict[int, str]) -> Any:
        if asked.get("data") == 13:
            client.network.die()
        return Remembering.answer(server, asked, held)

    server.answer = answer  # type: ignore[method-assign]
    with pytest.raises(SessionLost, match="3 sessions in a row were lost while they ran this step"):
        client.call(13)
    assert server.deaths == 3


def test_a_recovery_that_takes_too_long_is_given_up() -> None:
    client = RecoveringClient(Cluster(Remembering()), recover_s=30.0)
    client.call(0, "reset")
    client.network.die()
    client.network.faults = iter([0, *[1] * 1000])  # every connection is refused
    began = client.network.now
    with pytest.raises(SessionLost, match="not recovered within 30 s"):
        client.call(1)
    assert 25 < client.network.now - began < 60


def test_an_environment_that_says_it_is_not_deterministic_is_refused() -> None:
    server = Remembering()
    server.deterministic = False
    with pytest.raises(Unsupported, match="DETERMINISTIC = False"):
        RecoveringClient(Cluster(server))


def test_a_failed_reset_is_played_again_as_it_was() -> None:
    """The episode before it goes on: the environment refused the reset's options."""
    log = EpisodeLog()
    log.note(Ask("reset", b"1"), Answer("observation", {}), JSON)
    log.note(Ask("step", b"2"), Answer("observation", {}), JSON)
    log.note(Ask("reset", b"3"), Answer("error", {"code": "VALIDATION_ERROR", "message": "no"}), JSON)
    log.note(Ask("state", None), Answer("state", {}), JSON)
    assert [played.ask.data for played in log.plays] == [b"1", b"2", b"3"]
    log.note(Ask("reset", b"4"), Answer("observation", {}), JSON)
    assert [played.ask.data for played in log.plays] == [b"4"]


@pytest.mark.parametrize("at", range(12))
def test_a_recovery_that_was_interrupted_begins_again_and_leaves_no_session(at: int) -> None:
    client = RecoveringClient(Cluster(Remembering()))
    for n in range(STEPS):
        client.call(n, "step" if n else "reset")
    client.network.die()
    heard = iter(range(at))

    def interrupted(wanted: Any) -> Any:
        if isinstance(wanted, Receive) and next(heard, None) is None:
            raise KeyboardInterrupt
        return client.network.act(wanted)

    try:
        drive(client.flow.exchange(Ask("state", b"-1")), interrupted)
    except KeyboardInterrupt:
        drive(client.flow.interrupted(), client.network.act)
    steps = [n for n in client.call(STEPS) if n >= 0]
    assert steps == list(range(STEPS + 1))
    assert len(client.network.servers.ledgers) == 1, "the session that was half played again is closed"


def test_a_step_that_ended_its_environment_is_not_played_again() -> None:
    log = EpisodeLog()
    log.note(Ask("reset", b"{}"), Answer("observation", {}), JSON)
    error = {"code": "OUT_OF_RESOURCES", "message": "used more than 512 MB", "usable": False}
    log.note(Ask("step", b"{}"), Answer("error", error), JSON)
    assert log.unknown == "step 1 ended the environment"
    assert len(log.plays) == 1
