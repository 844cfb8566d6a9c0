"""The flow that reconnects, fed by hand: a network that fails at any point, and a clock of its own."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envtorch.errors import (
    ConnectFailed,
    Draining,
    EnvTorchError,
    MessageTooLarge,
    SessionLost,
    TimedOut,
)
from envtorch.protocol.backoff import Backoff
from envtorch.protocol.channels import ClientChannels
from envtorch.protocol.flow import drive
from envtorch.protocol.formats import JSON
from envtorch.protocol.reconnect import (
    Connect,
    Cut,
    Drop,
    Late,
    Ping,
    Receive,
    Reconnecting,
    Send,
    Sleep,
    Timings,
    connected,
)
from envtorch.protocol.wire import Ask

OK = "ok"
FAULTS = {
    Connect: ("refused", "broken"),
    Send: ("swallowed", "half"),
    Receive: ("cut", "cut after", "silence"),
    Ping: ("swallowed",),
}
TIMINGS = Timings(connect_timeout_s=10, message_timeout_s=30, wait_s=0, reconnect_s=20, heartbeat_s=5)


class Server:
    """Sessions that outlive their sockets, with a ledger: what a repeated id gets is not run again."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int, int]] = []
        """Session, request id and number of every step that ran."""
        self.ledgers: dict[str, dict[int, Any]] = {}
        self.cancelled: list[int] = []

    def answer(self, asked: Any, held: dict[int, str]) -> Any:
        id, ch, data = asked["id"], asked.get("ch", 0), asked.get("data")
        match asked["type"]:
            case "session":
                assert ch not in held, "the channel has a session already"
                self.ledgers.setdefault(data["token"], {})
                held[ch] = data["token"]
                return {"type": "session", "id": id, "ch": ch, "data": {}}
            case "attach":
                if data["token"] not in self.ledgers:
                    return _error(id, ch, "SESSION_ERROR")
                held[ch] = data["token"]
                return {"type": "session", "id": id, "ch": ch, "data": {}}
            case "close":
                self.ledgers.pop(held.pop(ch, ""), None)
                return {"type": "closed", "id": id, "ch": ch, "data": {}}
            case "cancel":
                self.cancelled.append(data["id"])
                return {"type": "cancelled", "id": id, "ch": ch, "data": {}}
        token = held.get(ch)
        if token is None or token not in self.ledgers:
            return _error(id, ch, "SESSION_ERROR")
        ledger = self.ledgers[token]
        if id not in ledger:
            ledger[id] = data
            self.runs.append((token, id, data))
        return {"type": "observation", "id": id, "ch": ch, "data": {"n": ledger[id]}}


def _error(id: int, ch: int, code: str) -> Any:
    return {"type": "error", "id": id, "ch": ch, "data": {"code": code, "message": "gone"}}


class Network:
    """Does what a flow asks for, and fails as `faults` say, one for each thing that can fail."""

    def __init__(self, server: Server, faults: Iterable[int] = ()) -> None:
        self.server = server
        self.faults = iter(faults)
        self.now = 0.0
        self.done: list[Any] = []
        self.interrupt_at: int | None = None
        self._inbox: list[bytes] | None = None
        self._held: dict[int, str] = {}
        self._is_dead = self._is_half_sent = False

    def clock(self) -> float:
        return self.now

    def act(self, wanted: Any) -> Any:
        self.done.append(wanted)
        if len(self.done) == self.interrupt_at:
            raise KeyboardInterrupt
        kinds = FAULTS.get(type(wanted), ())
        chosen = next(self.faults, 0) if kinds else 0
        fault = OK if chosen == 0 else kinds[(chosen - 1) % len(kinds)]
        match wanted:
            case Connect():
                return self._connect(fault)
            case Send():
                return self._send(wanted, fault)
            case Receive():
                return self._receive(wanted, fault)
            case Sleep():
                assert wanted.seconds >= 0
                self.now += wanted.seconds
            case Drop():
                self._inbox = None
        return None

    def _connect(self, fault: str) -> str:
        self.now += 0.01
        self._inbox = None
        if fault != OK:
            raise ConnectFailed("no", was_cut=fault == "broken", is_refused=fault == "refused")
        self._inbox, self._held, self._is_dead, self._is_half_sent = [], {}, False, False
        return "envtorch.v1"

    def _send(self, wanted: Send, fault: str) -> None:
        assert self._inbox is not None, "there is a socket"
        assert not self._is_half_sent, "nothing is written after half a message"
        assert wanted.deadline > self.now or fault == OK
        if fault == "half":
            self._is_half_sent = True
            self.now = max(self.now, wanted.deadline)
            raise Late
        if fault == "swallowed":
            self._is_dead = True
        if not self._is_dead:
            asked = json.loads(wanted.frame)
            for one in asked if isinstance(asked, list) else [asked]:
                self._inbox.append(json.dumps(self.server.answer(one, self._held)).encode())

    def _receive(self, wanted: Receive, fault: str) -> bytes:
        assert self._inbox is not None, "there is a socket"
        if self._is_dead or fault == "cut":
            raise Cut("cut")
        if fault == "cut after" and self._inbox:
            self._is_dead = True
        elif fault == "silence" or not self._inbox:
            self.now = max(self.now, wanted.deadline)
            raise Late
        return self._inbox.pop(0)


class Client:
    """A client of one session whose network is made up."""

    def __init__(self, network: Network, timings: Timings = TIMINGS) -> None:
        self.network = network
        self.flow = Reconnecting(ClientChannels(JSON), timings, clock=network.clock)

    def open(self) -> None:
        drive(self.flow.open(), self.network.act)

    def step(self, n: int, kind: str = "step", timeout_s: float | None = None) -> Any:
        asking = self.flow.exchange(Ask(kind, b"%d" % n), timeout_s)
        return drive(asking, self.network.act).expect("observation")["n"]

    def close(self) -> None:
        drive(self.flow.close(), self.network.act)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_every_step_happens_once_and_gets_its_own_answer_whatever_fails(faults: list[int]) -> None:
    server = Server()
    client = Client(Network(server, iter(faults)))
    acknowledged: list[int] = []
    try:
        client.open()
    except EnvTorchError:
        return
    began = client.network.now
    for n in range(5):
        kind = "step" if client.flow.channels.refusal(0) is None else "reset"
        try:
            assert client.step(n, kind) == n, "another request's answer"
            acknowledged.append(n)
        except (TimedOut, SessionLost, ConnectFailed):
            pass  # a loss that is typed
        assert client.network.now - began <= TIMINGS.message_timeout_s + 1.1, "it kept its deadline"
        began = client.network.now
    ran = [n for _, _, n in server.runs]
    assert sorted(set(ran)) == sorted(ran), "nothing ran twice"
    assert set(acknowledged) <= set(ran)
    assert ran == sorted(ran), "in order"
    client.close()


@pytest.mark.parametrize("fault", [1, 2, 3])
@pytest.mark.parametrize("at", range(30))
def test_one_fault_at_any_point_is_not_noticed(fault: int, at: int) -> None:
    server = Server()
    client = Client(Network(server, iter([0] * at + [fault])))
    try:
        client.open()
        for n in range(5):
            assert client.step(n) == n
    except (
        TimedOut,
        ConnectFailed,
    ):  # the one fault that may show: half a message, until the caller's deadline
        assert client.network.now >= TIMINGS.connect_timeout_s
    ran = [n for _, _, n in server.runs]
    assert ran == sorted(set(ran))


@pytest.mark.parametrize("at", range(4, 14))
def test_an_interrupted_call_is_cancelled_and_the_next_one_gets_its_own_answer(at: int) -> None:
    server = Server()
    client = Client(Network(server))
    client.open()
    client.network.interrupt_at = at
    with pytest.raises(KeyboardInterrupt):
        [client.step(n) for n in range(20)]
    assert client.step(100) == 100
    ran = [n for _, _, n in server.runs]
    assert ran == sorted(set(ran))


def test_a_call_that_is_interrupted_while_it_waits_is_cancelled_on_the_server() -> None:
    server = Server()
    client = Client(Network(server))
    client.open()
    client.network.interrupt_at = len(client.network.done) + 2  # the first thing is to send
    with pytest.raises(KeyboardInterrupt):
        client.step(1)
    assert server.cancelled == [server.runs[-1][1]]


def lose_the_line(client: Client) -> None:
    client.network._is_dead = True


def test_a_server_that_refuses_connections_is_noticed_at_once_and_only_once() -> None:
    client = Client(Network(Server()))
    client.open()
    lose_the_line(client)
    client.network.faults = _after_the_next_send(1)
    began = client.network.now
    with pytest.raises(SessionLost, match="is gone"):
        client.step(1)
    assert client.network.now - began < 2
    asked = len(client.network.done)
    for _ in range(3):
        with pytest.raises(SessionLost, match="is gone"):
            client.step(2)
    assert len(client.network.done) == asked, "a session that is lost is not tried again and again"


def _after_the_next_send(fault: int) -> Iterator[int]:
    yield 0  # the send
    yield 0  # the receive, which finds the line cut
    while True:
        yield fault


def test_the_budget_is_for_one_outage_and_not_for_each_call() -> None:
    client = Client(Network(Server()))
    client.open()
    lose_the_line(client)
    client.network.faults = _after_the_next_send(2)  # attempts break on the way, and may work again
    began = client.network.now
    errors: list[type[Exception]] = []
    while SessionLost not in errors:
        with pytest.raises(EnvTorchError) as caught:
            client.step(1, timeout_s=2.0)
        errors.append(caught.type)
    assert errors[:-1] == [TimedOut] * (len(errors) - 1)
    assert client.network.now - began <= TIMINGS.reconnect_s + 1


def client_of_a_lost_session() -> tuple["Server", "Client"]:
    """A server that has forgotten its session, and a client that has been told so."""
    server = Server()
    client = Client(Network(server))
    client.open()
    server.ledgers.clear()
    with pytest.raises(SessionLost):
        client.step(1)
    return server, client


def test_a_reset_after_the_session_was_lost_opens_another() -> None:
    server, client = client_of_a_lost_session()
    with pytest.raises(SessionLost):
        client.step(2)
    assert client.step(3, kind="reset") == 3
    assert client.step(4) == 4
    assert len(server.ledgers) == 1


@pytest.mark.parametrize("at", range(1, 8))
def test_a_reset_that_opens_another_and_is_interrupted_anywhere_leaves_no_session(at: int) -> None:
    server, client = client_of_a_lost_session()
    client.network.interrupt_at = len(client.network.done) + at
    with suppress(KeyboardInterrupt):
        client.step(2, kind="reset")
    client.network.interrupt_at = None
    client.close()
    assert server.ledgers == {}


def test_after_close_only_a_reset_opens_a_session() -> None:
    server = Server()
    client = Client(Network(server))
    client.open()
    client.close()
    assert server.ledgers == {}
    with pytest.raises(EnvTorchError, match="closed"):
        client.step(1)
    assert client.step(2, kind="reset") == 2


def test_a_server_that_said_it_was_shutting_down_is_not_waited_for() -> None:
    client = Client(Network(Server()))
    client.open()
    assert client.network._inbox is not None
    client.network._inbox.append(b'{"type":"draining"}')
    client.step(1)
    lose_the_line(client)
    client.network.faults = _after_the_next_send(1)
    began = client.network.now
    with pytest.raises(Draining):
        client.step(2)
    assert client.network.now - began < 0.5


class Ending(Network):
    """The socket is closed by the server with this code, when it is next read from."""

    code: int | None = None

    def _receive(self, wanted: Receive, fault: str) -> bytes:
        if self.code is not None:
            code, self.code = self.code, None
            raise Cut("over size limit", code=code)
        return super()._receive(wanted, fault)


def test_a_message_that_the_server_closes_the_socket_over_is_not_sent_again() -> None:
    network = Ending(Server())
    client = Client(network)
    client.open()
    network.code = 1009
    with pytest.raises(MessageTooLarge, match="over size limit"):
        client.step(1)
    sent = [json.loads(one.frame) for one in network.done if isinstance(one, Send)]
    assert [one["data"] for one in sent if one["type"] == "step"] == [1]
    assert client.step(2) == 2, "and the session goes on"


def test_a_session_that_another_client_took_over_is_not_fought_over() -> None:
    network = Ending(Server())
    client = Client(network)
    client.open()
    network.code = 4000
    with pytest.raises(SessionLost, match="another client has attached"):
        client.step(1)
    assert sum(isinstance(one, Connect) for one in network.done) == 1


def test_a_session_that_an_earlier_socket_of_the_client_took_over_is_attached_again() -> None:
    """An `attach` on a socket that was left may be read after the one on the next socket."""
    network = Ending(Server())
    client = Client(network)
    client.open()
    network.code = 1006
    assert client.step(1) == 1
    network.code = 4000
    assert client.step(2) == 2, "it may have been our own stray, which is used up now"
    network.code = 4000
    with pytest.raises(SessionLost, match="another client has attached"):
        client.step(3)


def test_a_silent_server_is_pinged_and_then_left() -> None:
    client = Client(Network(Server(), iter([0, 0, 0, 0, 3, 0, 3])))
    client.open()
    assert client.step(1) == 1
    kinds = [type(one) for one in client.network.done]
    pinged = kinds.index(Ping)
    assert kinds[pinged - 1 : pinged + 5] == [Receive, Ping, Receive, Drop, Sleep, Connect]
    assert sum(isinstance(one, Connect) for one in client.network.done) == 2


def test_the_first_socket_is_tried_again_when_it_breaks_and_not_when_it_is_refused() -> None:
    network = Network(Server(), iter([2, 2, 0]))
    assert drive(connected(TIMINGS, network.clock), network.act) is JSON
    refused = Network(Server(), iter([1]))
    with pytest.raises(ConnectFailed):
        drive(connected(TIMINGS, refused.clock), refused.act)
    assert len(refused.done) == 1


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=12, max_size=12))
def test_backing_off_takes_longer_each_time_within_bounds(rolls: list[float]) -> None:
    backoff = Backoff(rolls, first_s=0.1, most_s=2.0)
    for attempt in range(12):
        delay = min(0.1 * 2**attempt, 2.0)
        assert delay / 2 <= backoff.next_s() <= delay
