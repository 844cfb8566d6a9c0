"""`/ws` over a real socket: what is promised beyond the recorded exchanges."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from envtorch.server import create_app
from tests.server.environments import WAYS, AsyncObedient, Mixed, Obedient, Quick, Unbuildable
from tests.support import PATIENCE_S, Running, eventually, running


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The same promises, however frames and steps travel."""
    environment, options = WAYS[request.param]
    with running(create_app(environment, max_concurrent_envs=8), **options) as running_server:
        yield running_server


@pytest.fixture(scope="module")
def threads() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=8)) as running_server:
        yield running_server


def ask(socket: ClientConnection, message: Any) -> Any:
    socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(socket.recv(timeout=PATIENCE_S))


def step(do: str) -> dict[str, Any]:
    return {"type": "step", "data": {"do": do}}


BAD_FRAMES: dict[str, Any] = {
    "not JSON": ("nope", "INVALID_JSON"),
    "not an object": ("[1,2]", "INVALID_JSON"),
    "null": ("null", "INVALID_JSON"),
    "binary, not JSON": (b"\x00\x01", "INVALID_JSON"),
    "binary, not UTF-8": (b"\xff\xfe", "INVALID_JSON"),
    "NaN": ('{"type":"step","data":{"do":NaN}}', "INVALID_JSON"),
    "deep nesting": ('{"type":"step","data":' + "[" * 100_000 + "]" * 100_000 + "}", "INVALID_JSON"),
    "unknown type": ('{"type":"fly"}', "UNKNOWN_TYPE"),
    "unknown field": ('{"type":"state","really":true}', "VALIDATION_ERROR"),
    "unknown field of the action": ('{"type":"step","data":{"do":"x","how":"fast"}}', "VALIDATION_ERROR"),
    "wrong type": ('{"type":"step","data":{"do":[1]}}', "VALIDATION_ERROR"),
    "a validator raising ValueError": ('{"type":"step","data":{"do":"illegal"}}', "VALIDATION_ERROR"),
    "50 MB": ('{"type":"step","data":{"do":{"x":"' + "y" * 50_000_000 + '"}}}', "MESSAGE_TOO_LARGE"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_input_gets_a_clear_reply_and_the_session_goes_on(name: str, server: Running) -> None:
    frame, code = BAD_FRAMES[name]
    with server.socket() as socket:
        ask(socket, {"type": "reset", "data": {"episode_id": "mine"}})
        reply = ask(socket, frame)
        assert reply["type"] == "error"
        assert reply["data"]["code"] == code
        assert len(reply["data"]["message"]) > 5
        assert len(json.dumps(reply)) < 100_000
        assert ask(socket, {"type": "state"})["data"]["episode_id"] == "mine"


def test_text_that_is_not_utf8_is_answered_and_the_session_goes_on() -> None:
    """On our own line; uvicorn's ends such a socket itself, with 1007."""
    with running(create_app(Obedient)) as server, server.socket() as socket:
        ask(socket, {"type": "reset", "data": {"episode_id": "mine"}})
        socket.send(b'{"type":"st\xffate"}', text=True)
        assert json.loads(socket.recv(timeout=PATIENCE_S))["data"]["code"] == "INVALID_JSON"
        assert ask(socket, {"type": "state"})["data"]["episode_id"] == "mine"


def test_a_frame_is_what_its_bytes_say_whether_sent_as_text_or_binary(server: Running) -> None:
    with server.socket() as socket:
        ask(socket, {"type": "reset", "data": {"episode_id": "mine"}})
        assert ask(socket, b'{"type":"state"}')["data"]["episode_id"] == "mine"


def test_a_message_in_parts_is_put_together(server: Running) -> None:
    with server.socket() as socket:
        socket.send(iter(['{"type":"re', 'set","data":{"epi', 'sode_id":"parts"}}']))
        socket.recv(timeout=PATIENCE_S)
        assert ask(socket, {"type": "state"})["data"]["episode_id"] == "parts"


def test_frames_sent_ahead_are_answered_in_order(server: Running) -> None:
    with server.socket() as socket:
        for do in ("one", "fail", "two"):
            socket.send(json.dumps(step(do)))
        socket.send("nope")
        replies = [json.loads(socket.recv(timeout=PATIENCE_S))["data"] for _ in range(4)]
    assert [reply.get("observation", {}).get("said") or reply["code"] for reply in replies] == [
        "one",
        "EXECUTION_ERROR",
        "two",
        "INVALID_JSON",
    ]


def test_arrays_are_encoded_and_what_cannot_be_is_named(server: Running) -> None:
    with server.socket() as socket:
        assert ask(socket, step("array"))["data"]["observation"]["data"] == [[1.0, 0.0], [0.0, 1.0]]
        failed = ask(socket, step("unencodable"))["data"]
        assert failed["code"] == "EXECUTION_ERROR"
        assert "field 'data.deep.0' cannot be encoded" in failed["message"]
        assert ask(socket, {"type": "state"})["data"]["step_count"] == 2


def test_two_sessions_do_not_see_each_other(server: Running) -> None:
    with server.socket() as one, server.socket() as two:
        ask(one, {"type": "reset", "data": {"episode_id": "one"}})
        ask(two, {"type": "reset", "data": {"episode_id": "two"}})
        ask(one, step("x"))
        assert ask(one, {"type": "state"})["data"]["step_count"] == 1
        assert ask(two, {"type": "state"})["data"] == {"episode_id": "two", "step_count": 0, "events": []}


def test_a_dropped_socket_frees_its_slot_after_the_running_step(server: Running) -> None:
    Obedient.gate.clear()
    Obedient.entered.clear()
    with server.socket() as socket:
        socket.send(json.dumps(step("wait")))
        assert Obedient.entered.wait(PATIENCE_S)
        socket.socket.shutdown(2)
    assert server.sessions.active == 1
    Obedient.gate.set()
    eventually(lambda: server.sessions.active == 0, "the slot is freed")


def test_a_factory_that_fails_is_told_and_takes_no_slot() -> None:
    with running(create_app(Unbuildable, max_concurrent_envs=2)) as server:
        for _ in range(3):
            with server.socket() as socket:
                reply = json.loads(socket.recv(timeout=PATIENCE_S))["data"]
                assert (reply["code"], reply["factory_name"]) == ("FACTORY_ERROR", "Unbuildable")
                with pytest.raises(ConnectionClosed):
                    socket.recv(timeout=PATIENCE_S)
        assert server.sessions.active == 0


def test_production_mode_closes_simulation_control() -> None:
    with running(create_app(Obedient, mode="production")) as server, server.socket() as socket:
        for message in ({"type": "reset"}, step("x"), {"type": "state"}):
            reply = ask(socket, message)
            assert reply["data"]["code"] == "NOT_ALLOWED"
            assert "production mode" in reply["data"]["message"]


class TestWhereEnvironmentsLive:
    def threads_seen(self, environment: type, seconds_of_steps: int = 20) -> set[int]:
        with running(create_app(environment, max_concurrent_envs=4)) as server, server.socket() as socket:
            seen = {ask(socket, {"type": "reset"})["data"]["observation"]["thread"]}
            for _ in range(seconds_of_steps):
                seen.add(ask(socket, step("x"))["data"]["observation"]["thread"])
            ask(socket, {"type": "state"})
        assert threading.get_ident() not in seen
        return seen

    @pytest.mark.parametrize("environment", [Obedient, AsyncObedient, Mixed, Quick])
    def test_an_environment_never_changes_thread(self, environment: type) -> None:
        assert len(self.threads_seen(environment)) == 1

    def test_blocking_sessions_have_a_thread_each(self, threads: Running) -> None:
        with threads.socket() as one, threads.socket() as two:
            seen = {ask(socket, step("x"))["data"]["observation"]["thread"] for socket in (one, two)}
        assert len(seen) == 2

    @pytest.mark.parametrize("environment", [AsyncObedient, Quick])
    def test_sessions_that_do_not_block_share_the_loop(self, environment: type) -> None:
        with (
            running(create_app(environment, max_concurrent_envs=2)) as server,
            server.socket() as one,
            server.socket() as two,
        ):
            threads = {ask(socket, step("x"))["data"]["observation"]["thread"] for socket in (one, two)}
        assert len(threads) == 1

    def test_a_blocked_session_holds_up_nobody(self, threads: Running) -> None:
        Obedient.gate.clear()
        Obedient.entered.clear()
        with threads.socket() as stuck, threads.socket() as other:
            stuck.send(json.dumps(step("wait")))
            assert Obedient.entered.wait(PATIENCE_S)
            assert ask(other, step("free"))["data"]["observation"]["said"] == "free"
            Obedient.gate.set()
            assert json.loads(stuck.recv(timeout=PATIENCE_S))["type"] == "observation"
