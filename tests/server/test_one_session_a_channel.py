"""A channel of the extended wire has one session, and a session has one channel: no slot is lost between."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from envtorch import ConcurrencyConfig
from envtorch.server import create_app
from envtorch.server.sessions.remote_sessions import NoPeers
from tests.server.environments import Obedient, Quick
from tests.server.test_extended import Wire, extended
from tests.support import PATIENCE_S, Running, eventually, running


@pytest.fixture(
    params=[(Obedient, None), (Quick, None), (Obedient, "process")], ids=["thread", "loop", "process"]
)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    environment, isolation = request.param
    config = ConcurrencyConfig(max_concurrent_envs=4, reconnect_grace=60)
    with running(create_app(environment, concurrency_config=config, isolation=isolation)) as running_server:
        yield running_server


def detached(server: Running) -> str:
    """The token of a session that waits for a socket."""
    with extended(server) as wire:
        return str(wire.open()["token"])


def attach(wire: Wire, token: str, *, id: int, ch: int = 0) -> dict[str, Any]:
    return wire.ask(type="attach", id=id, ch=ch, data={"token": token})


def assert_taken(refused: dict[str, Any]) -> None:
    assert (refused["type"], refused["data"]["code"]) == ("error", "PROTOCOL_ERROR")
    assert "already" in refused["data"]["message"]


def test_an_attach_does_not_displace_the_session_of_its_channel(server: Running) -> None:
    other = detached(server)
    with extended(server) as wire:
        opened = wire.open(grace_s=0.1)
        assert_taken(attach(wire, other, id=1))
        assert wire.ask(type="state", id=2)["type"] == "state"
        assert attach(wire, other, id=3, ch=1)["type"] == "session"
        wire.close(1)
    eventually(lambda: server.sessions.active == 0, f"{opened['session_id']} ended with its grace")


def test_a_copy_does_not_displace_the_session_of_its_channel(server: Running) -> None:
    with extended(server) as wire:
        wire.open()
        wire.ask(type="reset", id=1)
        (copy,) = wire.ask(type="fork", id=2, data={"n": 1})["data"]["sessions"]
        assert_taken(attach(wire, copy["token"], id=3))
        assert attach(wire, copy["token"], id=4, ch=1)["data"]["session_id"] == copy["session_id"]
        wire.close(0)
        wire.close(1)
    eventually(lambda: server.sessions.active == 0, "both are closed")


def test_of_two_sessions_asked_for_one_channel_in_a_frame_one_is_opened(server: Running) -> None:
    with extended(server) as wire:
        asked = {"type": "session", "ch": 0, "data": {"grace_s": 0.1}}
        wire.say({**asked, "id": 1}, {**asked, "id": 2})
        answers = wire.hear_all({1, 2})
        assert answers[1]["type"] == "session"
        assert_taken(answers[2])
        assert server.sessions.active == 1
    eventually(lambda: server.sessions.active == 0, "it ended with its grace")


def test_a_session_and_an_attach_for_one_channel_in_a_frame_displace_nothing(server: Running) -> None:
    token = detached(server)
    with extended(server) as wire:
        wire.say({"type": "session", "id": 1}, {"type": "attach", "id": 2, "data": {"token": token}})
        answers = wire.hear_all({1, 2})
        assert answers[1]["type"] == "session"
        assert_taken(answers[2])
        assert attach(wire, token, id=3, ch=1)["type"] == "session"
        wire.close(0)
        wire.close(1)
    eventually(lambda: server.sessions.active == 0, "both are closed")


def test_a_token_asked_for_twice_in_a_frame_is_one_session_and_the_socket_stays(server: Running) -> None:
    with extended(server) as wire:
        asked = {"type": "session", "data": {"token": "chosen-by-the-client"}}
        wire.say({**asked, "id": 1, "ch": 0}, {**asked, "id": 2, "ch": 0}, {**asked, "id": 3, "ch": 1})
        answers = wire.hear_all({1, 2, 3})
        assert answers[1]["type"] == "session"
        assert_taken(answers[2])
        assert_taken(answers[3])
        assert wire.ask(type="state", id=4)["type"] == "state"
        wire.close()


def test_a_repeated_attach_is_answered_again(server: Running) -> None:
    with extended(server) as wire:
        opened = wire.open()
        again = attach(wire, opened["token"], id=1)
        assert (again["type"], again["data"]["session_id"]) == ("session", opened["session_id"])
        assert wire.ask(type="state", id=2)["type"] == "state"
        wire.close()


def test_a_session_does_not_change_its_channel(server: Running) -> None:
    with extended(server) as wire:
        token = wire.open()["token"]
        assert_taken(attach(wire, token, id=1, ch=1))
        assert wire.ask(type="state", id=2)["type"] == "state"
        assert wire.ask(type="state", id=3, ch=1)["data"]["code"] == "SESSION_ERROR"
        wire.close()


def test_a_closed_channel_takes_another_session_in_the_same_frame(server: Running) -> None:
    with extended(server) as wire:
        first = wire.open()
        wire.say({"type": "close", "id": 1}, {"type": "session", "id": 2, "data": {"wait_s": 20}})
        answers = wire.hear_all({1, 2})
        assert [answers[id]["type"] for id in (1, 2)] == ["closed", "session"]
        assert answers[2]["data"]["session_id"] != first["session_id"]
        wire.close()


def test_a_session_whose_socket_went_before_it_was_opened_is_closed() -> None:
    with running(create_app(Obedient, sessions=1)) as server, extended(server) as holder:
        holder.open()
        with extended(server) as waiting:
            waiting.say({"type": "session", "id": 1, "data": {"wait_s": 60}})
            eventually(lambda: server.sessions.slots.waiting == 1, "it waits for a slot")
        holder.close()
        eventually(lambda: server.sessions.active == 0, "nobody knows the token of the one that was opened")
        assert server.sessions.meter.opened == 2


class SlowPeers(NoPeers):
    """Other workers that have no session, and do not say so before they are told to."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    async def owner(self, name: str) -> int | None:
        self.asked.set()
        while not self.may_answer.is_set():  # noqa: ASYNC110, the test is another thread
            await asyncio.sleep(0.01)
        return None


def test_a_close_sent_after_an_attach_ends_the_session_though_its_socket_went() -> None:
    token = "chosen-by-the-client"
    config = ConcurrencyConfig(max_concurrent_envs=1, reconnect_grace=600)
    with running(create_app(Obedient, concurrency_config=config)) as server:
        peers = server.sessions.peers = SlowPeers()
        with extended(server) as gone:
            gone.say({"type": "attach", "id": 1, "data": {"token": token}}, {"type": "close", "id": 2})
            assert peers.asked.wait(PATIENCE_S)
        eventually(lambda: not server.sessions.drain_listeners, "the socket is gone")
        with extended(server) as wire:
            wire.open(token=token)
        assert server.sessions.active == 1
        peers.may_answer.set()
        eventually(lambda: server.sessions.active == 0, "the session was closed")


def test_each_close_that_comes_before_the_session_is_answered(server: Running) -> None:
    with extended(server) as wire:
        wire.say({"type": "session", "id": 1}, {"type": "close", "id": 2}, {"type": "close", "id": 3})
        answers = wire.hear_all({1, 2, 3})
        assert [answers[id]["type"] for id in (1, 2, 3)] == ["session", "closed", "error"]
        assert answers[3]["data"]["code"] == "SESSION_ERROR"
    eventually(lambda: server.sessions.active == 0, "it is closed")
