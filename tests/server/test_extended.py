"""The extended wire, frame by frame over a real socket: ids, channels, batches, deadlines, cancellation."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.errors import Cancelled
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.server import create_app
from tests import patient
from tests.server.environments import WAYS, AsyncObedient, Count, Obedient, Order, Report
from tests.support import PATIENCE_S, Running, eventually, running


@pytest.fixture(scope="module", params=["straight from the wire", "through ASGI"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    config = ConcurrencyConfig(max_concurrent_envs=4, reconnect_grace=30)
    _, options = WAYS[f"{request.param}, on a thread"]
    with running(create_app(Obedient, concurrency_config=config), **options) as running_server:
        yield running_server


@contextmanager
def extended(server: Running | str, format: Format = JSON) -> Iterator["Wire"]:
    name = "envtorch.v1" + ("+msgpack" if format is MSGPACK else "")
    url = (server if isinstance(server, str) else server.url).replace("http", "ws") + "/ws"
    options: dict[str, Any] = {"close_timeout": 5, "ping_interval": None, "max_size": None}
    with connect(url, subprotocols=[Subprotocol(name)], **options) as socket:
        assert socket.subprotocol == name
        yield Wire(socket, format)


class Wire:
    """Says and hears messages of the extended wire."""

    def __init__(self, socket: ClientConnection, format: Format) -> None:
        self.socket, self.format = socket, format

    def say(self, *messages: dict[str, Any]) -> None:
        frame = self.format.write(messages[0] if len(messages) == 1 else list(messages))
        self.socket.send(frame if self.format.is_binary else frame.decode())

    def hear(self) -> list[dict[str, Any]]:
        heard = self.format.read(self.socket.recv(timeout=PATIENCE_S))
        return heard if isinstance(heard, list) else [heard]

    def hear_all(self, ids: set[int]) -> dict[int, dict[str, Any]]:
        """Replies until each of these ids is answered, in whatever order and frames."""
        answers: dict[int, dict[str, Any]] = {}
        while not ids <= answers.keys():
            answers.update({message["id"]: message for message in self.hear()})
        return answers

    def ask(self, **message: Any) -> dict[str, Any]:
        self.say(message)
        return self.hear_all({message["id"]})[message["id"]]

    def open(self, ch: int = 0, **data: Any) -> dict[str, Any]:
        return self.ask(type="session", id=1000 + ch, ch=ch, data=data)["data"]  # type: ignore[no-any-return]

    def step(self, id: int, do: str, **more: Any) -> dict[str, Any]:
        return {"type": "step", "id": id, "data": {"do": do}, **more}

    def close(self, ch: int = 0) -> None:
        self.ask(type="close", id=5000 + ch, ch=ch)


every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)


@every_format
class TestExactlyOnce:
    def test_a_repeated_id_gets_the_stored_reply(self, format: Format, server: Running) -> None:
        with extended(server, format) as wire:
            wire.open()
            first = wire.ask(**wire.step(1, "x"))
            assert wire.ask(**wire.step(1, "x")) == first
            assert wire.ask(type="state", id=2)["data"]["step_count"] == 1
            wire.close()

    def test_an_id_with_different_contents_is_refused(self, format: Format, server: Running) -> None:
        with extended(server, format) as wire:
            wire.open()
            wire.ask(**wire.step(1, "x"))
            refused = wire.ask(**wire.step(1, "something else"))["data"]
            assert refused["code"] == "PROTOCOL_ERROR"
            assert "different contents" in refused["message"]
            assert wire.ask(type="state", id=2)["data"]["step_count"] == 1
            wire.close()

    def test_a_repeated_id_waits_for_the_one_that_runs(self, format: Format, server: Running) -> None:
        Obedient.gate.clear()
        Obedient.entered.clear()
        with extended(server, format) as wire:
            wire.open()
            wire.say(wire.step(1, "wait"))
            assert Obedient.entered.wait(PATIENCE_S)
            wire.say(wire.step(1, "wait"))
            Obedient.gate.set()
            heard: list[dict[str, Any]] = []
            while len(heard) < 2:
                heard += wire.hear()
            assert heard[0] == heard[1]
            assert wire.ask(type="state", id=2)["data"]["step_count"] == 1
            wire.close()

    def test_an_id_whose_reply_is_no_longer_kept_is_not_run_again(
        self, format: Format, server: Running
    ) -> None:
        with extended(server, format) as wire:
            wire.open()
            wire.ask(**wire.step(1, "x"))
            wire.ask(**wire.step(2, "x", ack=1))
            again = wire.ask(**wire.step(1, "x"))
            assert again["data"]["code"] == "PROTOCOL_ERROR"
            assert "not run again" in again["data"]["message"]
            assert wire.ask(type="state", id=3)["data"]["step_count"] == 2
            wire.close()

    def test_replies_wait_for_whoever_comes_back(self, format: Format, server: Running) -> None:
        Obedient.gate.clear()
        Obedient.entered.clear()
        with extended(server, format) as wire:
            token = wire.open()["token"]
            wire.say(wire.step(1, "wait"))
            assert Obedient.entered.wait(PATIENCE_S)
            wire.socket.socket.shutdown(2)
        Obedient.gate.set()
        with extended(server, format) as wire:
            told = wire.ask(type="attach", id=9, data={"token": token})["data"]
            assert told["last_id"] == 1
            assert wire.ask(**wire.step(1, "wait"))["data"]["observation"]["said"] == "wait"
            assert wire.ask(type="state", id=2)["data"]["step_count"] == 1
            wire.close()


class TestSessions:
    def test_asking_twice_with_one_token_opens_one(self, server: Running) -> None:
        token = "chosen-by-the-client-" + "x" * 12
        with extended(server) as one:
            first = one.open(token=token)
            with extended(server) as two:
                assert two.open(token=token)["session_id"] == first["session_id"]
                two.close()

    def test_a_short_token_is_refused(self, server: Running) -> None:
        with extended(server) as wire:
            assert wire.open(token="short")["code"] == "VALIDATION_ERROR"

    def test_one_token_does_not_open_anothers_session(self, server: Running) -> None:
        with extended(server) as wire:
            wire.open()
            refused = wire.ask(type="attach", id=2, ch=1, data={"token": "guessed" * 5})
            assert refused["data"]["code"] == "SESSION_ERROR"
            wire.close()

    def test_whoever_attaches_takes_the_session_over(self, server: Running) -> None:
        with extended(server) as one, extended(server) as two:
            token = one.open()["token"]
            two.ask(type="attach", id=1, data={"token": token})
            with pytest.raises(Exception, match="4000"):
                one.socket.recv(timeout=PATIENCE_S)
            assert two.ask(type="state", id=2)["type"] == "state"
            two.close()

    def test_many_sessions_share_a_socket(self, server: Running) -> None:
        with extended(server) as wire:
            for ch in range(3):
                wire.open(ch)
            wire.say(*({**wire.step(1, f"channel {ch}"), "ch": ch} for ch in range(3)))
            said: dict[int, str] = {}
            while len(said) < 3:
                said |= {m.get("ch", 0): m["data"]["observation"]["said"] for m in wire.hear()}
            assert said == {ch: f"channel {ch}" for ch in range(3)}
            for ch in range(3):
                wire.close(ch)

    def test_a_channel_without_a_session_says_so(self, server: Running) -> None:
        with extended(server) as wire:
            assert wire.ask(**wire.step(1, "x"))["data"]["code"] == "SESSION_ERROR"

    def test_a_full_server_lets_wait_in_turn(self) -> None:
        with running(create_app(Obedient, sessions=1)) as server, extended(server) as holder:
            holder.open()
            with extended(server) as impatient:
                assert impatient.open()["code"] == "CAPACITY_REACHED"
            with extended(server) as first, extended(server) as second:
                first.say({"type": "session", "id": 1, "data": {"wait_s": 20}})
                eventually(lambda: server.sessions.slots.waiting == 1, "the first waits")
                second.say({"type": "session", "id": 1, "data": {"wait_s": 20}})
                eventually(lambda: server.sessions.slots.waiting == 2, "the second waits")
                holder.close()
                assert first.hear()[0]["type"] == "session"
                assert server.sessions.slots.waiting == 1
                first.close()
                assert second.hear()[0]["type"] == "session"


class TestOutOfOrder:
    def test_a_slow_session_does_not_hold_up_the_socket(self, server: Running) -> None:
        Obedient.gate.clear()
        Obedient.entered.clear()
        with extended(server) as wire:
            wire.open(0)
            wire.open(1)
            wire.say(wire.step(1, "wait"))
            assert Obedient.entered.wait(PATIENCE_S)
            assert wire.ask(**{**wire.step(2, "fast"), "ch": 1})["data"]["observation"]["said"] == "fast"
            Obedient.gate.set()
            assert wire.hear()[0]["id"] == 1
            wire.close(0)
            wire.close(1)


class TestDeadlines:
    def test_a_thread_that_hangs_takes_its_session_with_it(self, server: Running) -> None:
        Obedient.gate.clear()
        before = server.sessions.active
        with extended(server) as wire:
            wire.open()
            late = wire.ask(**wire.step(1, "wait", timeout_s=0.1))["data"]
            assert (late["code"], late["usable"]) == ("TIMED_OUT", False)
            assert wire.ask(type="state", id=2)["data"]["code"] == "SESSION_ERROR"
            assert server.sessions.active == before + 1, "the slot is taken while the call runs"
            Obedient.gate.set()
            eventually(lambda: server.sessions.active == before, "the slot is free when it returned")

    def test_an_awaited_step_is_cancelled_and_the_session_goes_on(self) -> None:
        with running(create_app(Sleepy)) as server, extended(server) as wire:
            wire.open()
            late = wire.ask(**wire.step(1, "sleep", timeout_s=0.1))["data"]
            assert (late["code"], late["usable"]) == ("TIMED_OUT", True)
            assert wire.ask(**wire.step(2, "x"))["data"]["observation"]["said"] == "x"

    def test_a_step_that_waits_its_turn_too_long_is_never_made(self, server: Running) -> None:
        Obedient.gate.clear()
        Obedient.entered.clear()
        with extended(server) as wire:
            wire.open()
            wire.say(wire.step(1, "wait"))
            assert Obedient.entered.wait(PATIENCE_S)
            late = wire.ask(**wire.step(2, "x", timeout_s=0.1))["data"]
            assert (late["code"], late["usable"]) == ("TIMED_OUT", True)
            Obedient.gate.set()
            wire.hear_all({1})
            assert wire.ask(type="state", id=3)["data"]["step_count"] == 1
            wire.close()


class Sleepy(AsyncObedient):
    asleep = False

    async def step(self, action: Any) -> Any:
        if action.do == "sleep":
            type(self).asleep = True
            await asyncio.sleep(60)
        return await super().step(action)


class SleepyEnv(EnvClient[Order, Report, Count]): ...


class TestCancellation:
    def test_a_request_can_be_taken_back(self) -> None:
        with running(create_app(Sleepy)) as server, extended(server) as wire:
            wire.open()
            wire.say(wire.step(1, "sleep"))
            wire.say({"type": "cancel", "id": 2, "data": {"id": 1}})
            answers = wire.hear_all({1, 2})
            assert answers[2]["data"] == {"id": 1, "cancelled": True}
            assert answers[1]["data"]["code"] == "CANCELLED"
            assert wire.ask(**wire.step(3, "x"))["data"]["observation"]["said"] == "x"

    def test_the_async_client_can_take_its_call_back(self) -> None:
        async def main(url: str) -> tuple[bool, str]:
            async with SleepyEnv.aio(url) as env:
                await env.cancel()  # nothing runs: nothing happens
                step = asyncio.ensure_future(env.step(Order(do="sleep")))
                while not Sleepy.asleep:  # noqa: ASYNC110  # the server sets it, on a loop of its own
                    await asyncio.sleep(0.01)
                await env.cancel()
                with pytest.raises(Cancelled) as caught:
                    await step
                return caught.value.details["usable"], (await env.step(Order(do="x"))).observation.said

        Sleepy.asleep = False
        with running(create_app(Sleepy)) as server:
            assert asyncio.run(main(server.url)) == (True, "x")

    def test_what_is_done_cannot(self, server: Running) -> None:
        with extended(server) as wire:
            wire.open()
            wire.ask(**wire.step(1, "x"))
            assert wire.ask(type="cancel", id=2, data={"id": 1})["data"]["cancelled"] is False
            wire.close()


class TestStrictness:
    @pytest.mark.parametrize(
        ("frame", "code"),
        [
            ("nope", "INVALID_JSON"),
            ("5", "INVALID_JSON"),
            ('{"type":"state"}', "PROTOCOL_ERROR"),
            ('{"type":"state","id":1,"surprise":2}', "INVALID_JSON"),
            ('{"type":"session","id":1,"data":{"wait":1}}', "VALIDATION_ERROR"),
        ],
    )
    def test_bad_frames_are_answered(self, frame: str, code: str, server: Running) -> None:
        with extended(server) as wire:
            wire.socket.send(frame)
            assert wire.hear()[0]["data"]["code"] == code

    def test_bad_messages_leave_the_session_alone(self, server: Running) -> None:
        with extended(server) as wire:
            wire.open()
            assert wire.ask(type="fly", id=1)["data"]["code"] == "UNKNOWN_TYPE"
            assert wire.ask(type="step", id=2)["data"]["code"] == "VALIDATION_ERROR"
            assert wire.ask(**wire.step(3, "illegal"))["data"]["code"] == "VALIDATION_ERROR"
            failed = wire.ask(**wire.step(4, "fail"))["data"]
            assert (failed["code"], failed["exception"]) == ("EXECUTION_ERROR", "RuntimeError")
            assert len(failed["error_id"]) == 12
            assert wire.ask(**wire.step(5, "x"))["type"] == "observation"
            wire.close()

    def test_an_unknown_keyword_is_named(self) -> None:
        with running(create_app(AsyncObedient)) as server, extended(server) as wire:
            wire.open()
            refused = wire.ask(type="reset", id=1, data={"sead": 1})["data"]
            assert "reset does not take 'sead'" in refused["message"]
            assert refused["arguments"] == ["sead"]

    def test_production_mode_closes_it_too(self) -> None:
        with running(create_app(Obedient, mode="production")) as server, extended(server) as wire:
            wire.open()
            assert wire.ask(**wire.step(1, "x"))["data"]["code"] == "NOT_ALLOWED"


class TestMessagePack:
    def test_arrays_travel_as_buffers_and_arrive_as_views(self, server: Running) -> None:
        with extended(server, MSGPACK) as wire:
            wire.open()
            wire.say(wire.step(1, "array"))
            frame = wire.socket.recv(timeout=PATIENCE_S)
            array = MSGPACK.read(frame)["data"]["observation"]["data"]
            assert np.array_equal(array, np.eye(2))
            assert not array.flags.owndata, "it is a view of the frame"
            wire.close()

    @pytest.mark.parametrize("dtype", ["u1", "i8", "f4", "f8", "?", "c16"])
    def test_every_dtype_and_shape(self, dtype: str) -> None:
        for array in (np.arange(6).reshape(2, 3), np.zeros((0, 4)), np.arange(24).reshape(2, 3, 4)[:, ::2]):
            sent = array.astype(dtype)
            received = MSGPACK.read(MSGPACK.write({"x": sent}))["x"]
            assert received.dtype == sent.dtype
            assert np.array_equal(received, sent)

    def test_bytes_and_scalars(self) -> None:
        sent = {"b": b"\xff\x00", "n": np.float32(1.5), "list": [np.int64(3)]}
        assert MSGPACK.read(MSGPACK.write(sent)) == {"b": b"\xff\x00", "n": 1.5, "list": [3]}

    def test_a_lying_buffer_is_refused(self) -> None:
        lie = msgspec.msgpack.encode(["<f8", [1000]])
        frame = msgspec.msgpack.encode(
            msgspec.msgpack.Ext(1, len(lie).to_bytes(2, "big") + lie + b"\x00" * 8)
        )
        with pytest.raises(msgspec.DecodeError, match="shape"):
            MSGPACK.read(frame)


class TestOverHttp:
    def test_a_repeated_request_id_gets_the_stored_reply(self, server: Running) -> None:

        with patient.Client(base_url=server.url) as http:
            http.post("/reset")
            body = {"action": {"do": "x"}, "request_id": "r-1"}
            first, second = (http.post("/step", json=body) for _ in range(2))
            assert first.json() == second.json()
            assert http.get("/state").json()["step_count"] == 1
            http.post("/close")

    def test_a_deadline_is_kept(self, server: Running) -> None:

        Obedient.gate.clear()
        with patient.Client(base_url=server.url) as http:
            http.post("/reset")
            late = http.post("/step", json={"action": {"do": "wait"}, "timeout_s": 0.1})
            assert (late.status_code, late.json()["code"]) == (504, "TIMED_OUT")
            assert http.get("/state").status_code == 404
            Obedient.gate.set()


def test_openenvs_wire_is_what_a_client_gets_that_offers_nothing(server: Running) -> None:
    with server.socket() as socket:
        assert socket.subprotocol is None
        socket.send('{"type":"state"}')
        assert json.loads(socket.recv(timeout=PATIENCE_S)).keys() == {"type", "data"}
