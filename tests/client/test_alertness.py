"""When a blocking client stays awake for an answer, and when it goes to sleep at once."""

import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from envtorch.client.alertness import Alertness, may_look
from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app
from tests.support import running


class Clock:
    """A microsecond goes by with every look at it."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks * 1e-6


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def room() -> memoryview:
    return memoryview(bytearray(64))


def test_an_answer_that_is_there_is_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.send(b"answer")
    place = room()
    assert Alertness(1e-3).receive_into(near, place) == 6
    assert bytes(place[:6]) == b"answer"


def test_an_answer_that_comes_while_we_look_is_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    clock = Clock()

    def answering() -> float:
        if clock.looks == 20:
            far.send(b"late, but not too late")
        return clock()

    assert Alertness(50e-6, answering).receive_into(near, room()) == 22
    assert clock.looks < 50


def test_nobody_looks_for_longer_than_was_said(pair: tuple[socket.socket, socket.socket]) -> None:
    clock = Clock()
    assert Alertness(50e-6, clock).receive_into(pair[0], room()) is None
    assert 45 < clock.looks < 60


def test_slow_answers_are_hardly_ever_looked_for(pair: tuple[socket.socket, socket.socket]) -> None:
    clock = Clock()
    alertness = Alertness(50e-6, clock)
    for _ in range(10_000):
        assert alertness.receive_into(pair[0], room()) is None
    assert clock.looks < 30 * 60  # of ten thousand waits, fewer than thirty were looked through


def test_one_quick_answer_is_enough_to_look_again(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    alertness = Alertness(50e-6, Clock())
    for _ in range(100):
        alertness.receive_into(near, room())
    far.send(b"quick")
    while alertness.receive_into(near, room()) is None:
        pass  # until its rest is over
    far.send(b"again")
    assert alertness.receive_into(near, room()) == 5


def test_the_end_of_a_connection_is_an_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.close()
    assert Alertness(1e-3).receive_into(near, room()) == 0


def test_one_thread_at_a_time_looks(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.send(b"for whoever looks")
    seen: list[int | None] = []

    def meanwhile() -> float:
        if not seen:
            another = threading.Thread(target=lambda: seen.append(Alertness(1e-3).receive_into(near, room())))
            another.start()
            another.join()
        return 0.0

    assert Alertness(1e-3, meanwhile).receive_into(near, room()) == 17
    assert seen == [None]


def test_a_machine_with_one_core_never_looks(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert not may_look(pair[0])
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert may_look(pair[0])


def test_tls_sockets_are_slept_on(pair: tuple[socket.socket, socket.socket]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with context.wrap_socket(pair[0], do_handshake_on_connect=False) as wrapped:
        assert not may_look(wrapped)


@pytest.mark.parametrize("alert_s", [0.0, 0.0005, 0.05])
def test_an_episode_is_the_same_however_alert_its_client(alert_s: float) -> None:
    with running(create_app(EchoEnvironment)) as server, EchoEnv(server.url, alert_s=alert_s) as env:
        env.reset(seed=7)
        for number in range(50):
            assert env.step(EchoAction(message=f"{number}")).observation.echoed_message == f"{number}"
        assert env.state().step_count == 50
