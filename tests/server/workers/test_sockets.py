"""Sessions of one worker through sockets of the other, on the extended wire and on OpenEnv's."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.protocol.ledger import KEPT_BYTES
from tests.server.workers.support import WorkersServer, step
from tests.support import PATIENCE_S, eventually

every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
HERE, THERE = 0, 1


@every_format
class TestAttach:
    def test_a_cut_session_is_taken_up_through_the_other_worker(
        self, format: Format, two: WorkersServer
    ) -> None:
        with two.wire(HERE, format) as wire:
            token = wire.open()["token"]
            wire.ask(type="reset", id=1, data={"seed": 40})
            first = wire.ask(**step(2))
            wire.socket.socket.shutdown(2)
        with two.wire(THERE, format) as wire:
            told = wire.ask(type="attach", id=3, data={"token": token})["data"]
            assert told["last_id"] == 2
            assert wire.ask(**step(2)) == first, "a repeated id is answered from the ledger"
            second = wire.ask(**step(4))["data"]["observation"]
            assert second["total"] == 42
            assert second["process"] == two.process_of(HERE)
            assert wire.ask(type="state", id=5)["data"]["step_count"] == 42
            wire.close()

    def test_a_step_that_ran_meanwhile_is_answered_through_the_other_worker(
        self, format: Format, two: WorkersServer
    ) -> None:
        with two.wire(HERE, format) as wire:
            token = wire.open()["token"]
            wire.say(step(1, wait_s=0.5))
            wire.socket.socket.shutdown(2)
        with two.wire(THERE, format) as wire:
            wire.ask(type="attach", id=2, data={"token": token})
            assert wire.ask(**step(1, wait_s=0.5))["data"]["observation"]["total"] == 1
            assert wire.ask(type="state", id=3)["data"]["step_count"] == 1
            wire.close()

    def test_asking_twice_by_two_ways_opens_one(self, format: Format, two: WorkersServer) -> None:
        token = f"chosen-by-the-client-{format.name}"
        with two.wire(HERE, format) as one, two.wire(THERE, format) as other:
            first = one.open(token=token)
            assert other.open(token=token)["session_id"] == first["session_id"]
            other.close()

    def test_large_frames_pass(self, format: Format, two: WorkersServer) -> None:
        with two.wire(HERE, format) as one, two.wire(THERE, format) as other:
            token = one.open()["token"]
            other.ask(type="attach", id=1, data={"token": token})
            padding = other.ask(**step(2, size=5_000_000))["data"]["observation"]["padding"]
            assert len(padding) == 5_000_000
            other.close()

    def test_answers_that_were_dropped_are_told_through_the_other_worker(
        self, format: Format, two: WorkersServer
    ) -> None:
        with two.wire(HERE, format) as one, two.wire(THERE, format) as other:
            token = one.open()["token"]
            other.ask(type="attach", id=1, data={"token": token})
            for id in (2, 3, 4):
                newest = other.ask(**step(id, size=KEPT_BYTES // 2))
            assert other.ask(**step(2, size=KEPT_BYTES // 2))["data"]["code"] == "ANSWER_DROPPED"
            assert other.ask(**step(4, size=KEPT_BYTES // 2)) == newest
            assert other.ask(type="state", id=5)["data"]["step_count"] == 3
            other.close()


class TestOneSocketManyWorkers:
    def test_channels_of_both_in_one_batch(self, two: WorkersServer) -> None:
        with two.wire(HERE) as before:
            far = before.open()["token"]
            before.socket.socket.shutdown(2)
        with two.wire(THERE) as wire:
            wire.open(ch=0)
            wire.ask(type="attach", id=1, ch=1, data={"token": far})
            wire.say({**step(2), "ch": 0}, {**step(3), "ch": 1}, {**step(4), "ch": 0}, {**step(5), "ch": 1})
            answers = wire.hear_all({2, 3, 4, 5})
            lives = {id: answers[id]["data"]["observation"]["process"] for id in answers}
            near, distant = two.process_of(THERE), two.process_of(HERE)
            assert lives == {2: near, 3: distant, 4: near, 5: distant}
            assert [answers[id].get("ch", 0) for id in (2, 3)] == [0, 1]
            wire.close(0)
            wire.close(1)

    def test_steps_of_many_sessions_taken_together(self, two: WorkersServer) -> None:
        with two.wire(HERE) as before:
            far = before.open()["token"]
            before.socket.socket.shutdown(2)
        with two.wire(THERE) as wire:
            wire.open(ch=0)
            wire.ask(type="attach", id=1, ch=1, data={"token": far})
            for id in (2, 3):
                wire.say({"type": "steps", "id": id, "data": {"ch": [0, 1], "actions": [{}, {}]}})
                heard: list[dict[str, Any]] = []
                while len(heard) < 2:
                    heard += wire.hear()
                totals = {one.get("ch", 0): one["data"]["observation"]["total"] for one in heard}
                assert totals == {0: id - 1, 1: id - 1}
            wire.close(0)
            wire.close(1)

    def test_a_far_step_that_waits_holds_up_nobody(self, two: WorkersServer) -> None:
        with two.wire(HERE) as before:
            far = before.open()["token"]
            before.socket.socket.shutdown(2)
        with two.wire(THERE) as wire:
            wire.open(ch=0)
            wire.ask(type="attach", id=1, ch=1, data={"token": far})
            wire.say({**step(2, wait_s=1.0), "ch": 1})
            wire.say({**step(3), "ch": 0})
            assert wire.hear()[0]["id"] == 3
            assert wire.hear()[0]["id"] == 2
            wire.close(0)
            wire.close(1)

    def test_no_more_is_read_while_too_many_far_requests_wait(
        self, two: WorkersServer, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        far_ids = range(2, 2000)
        with two.wire(HERE) as before:
            far = before.open()["token"]
            before.socket.socket.shutdown(2)
        with two.wire(THERE) as wire, ThreadPoolExecutor() as thread:
            wire.open(ch=0)
            wire.ask(type="attach", id=1, ch=1, data={"token": far})

            def send() -> None:
                for id in far_ids:
                    wire.say({**step(id, wait_for=str(gate)), "ch": 1})
                wire.say({**step(2000), "ch": 0})

            sent = thread.submit(send)
            try:
                with pytest.raises(TimeoutError):
                    wire.socket.recv(timeout=1.0)  # nor the last one, which would be answered at once
            finally:
                gate.touch()
            answers = wire.hear_all({*far_ids, 2000})
            assert all(answer["type"] == "observation" for answer in answers.values())
            sent.result(PATIENCE_S)
            wire.close(0)
            wire.close(1)

    def test_a_session_may_not_be_opened_on_a_channel_that_has_a_far_one(self, two: WorkersServer) -> None:
        with two.wire(HERE) as one, two.wire(THERE) as other:
            token = one.open()["token"]
            other.ask(type="attach", id=1, data={"token": token})
            assert other.ask(type="session", id=2)["data"]["code"] == "PROTOCOL_ERROR"
            other.close()


class TestRequests:
    def test_a_far_request_is_taken_back(self, two: WorkersServer) -> None:
        with two.wire(HERE) as one, two.wire(THERE) as other:
            token = one.open()["token"]
            other.ask(type="attach", id=1, data={"token": token})
            other.say(step(2, wait_s=60))
            other.say({"type": "cancel", "id": 3, "data": {"id": 2}})
            heard = other.hear_all({2, 3})
            assert heard[3]["data"] == {"id": 2, "cancelled": True}
            assert heard[2]["data"]["code"] == "CANCELLED"
            assert other.ask(type="state", id=4)["data"]["step_count"] == 0
            other.close()

    def test_a_far_deadline_is_kept(self, two: WorkersServer) -> None:
        with two.wire(HERE) as one, two.wire(THERE) as other:
            token = one.open()["token"]
            other.ask(type="attach", id=1, data={"token": token})
            late = other.ask(**step(2, wait_s=60), timeout_s=0.05)
            assert (late["data"]["code"], late["data"]["usable"]) == ("TIMED_OUT", True)
            other.close()

    def test_errors_are_what_they_would_be_at_home(self, two: WorkersServer) -> None:
        with two.wire(HERE) as one:
            token = one.open()["token"]
            requests: list[dict[str, Any]] = [
                {"type": "step", "id": 11, "data": {"wait_s": "soon"}},
                {"type": "nonsense", "id": 12},
                {"type": "reset", "id": 13, "data": {"sed": 1}},
                {"type": "step", "id": 14},
            ]
            at_home = [one.ask(**request) for request in requests]
            with two.wire(THERE) as other:
                other.ask(type="attach", id=20, data={"token": token})
                for request in requests:
                    request["id"] += 20
                far = [other.ask(**request) for request in requests]
                other.close()
        assert [answer["data"]["code"] for answer in far] == [answer["data"]["code"] for answer in at_home]

    def test_closing_a_far_session_frees_its_slot(self, two: WorkersServer) -> None:
        before = two.sessions()
        with two.wire(HERE) as one, two.wire(THERE) as other:
            token = one.open()["token"]
            other.ask(type="attach", id=1, data={"token": token})
            assert other.ask(type="close", id=2)["type"] == "closed"
            assert two.sessions() == before
            assert other.ask(**step(3))["data"]["code"] == "SESSION_ERROR"

    def test_a_close_is_heeded_although_its_sender_does_not_wait(self, two: WorkersServer) -> None:
        before = two.sessions()
        with two.wire(HERE) as one, two.wire(THERE) as other:
            token = one.open()["token"]
            other.ask(type="attach", id=1, data={"token": token})
            other.say({"type": "close", "id": 2})
        eventually(lambda: two.sessions() == before, "the session is closed, not left to its grace")


class TestHolding:
    def test_whoever_attaches_takes_over_from_the_other_worker(self, two: WorkersServer) -> None:
        with two.wire(HERE) as home:
            token = home.open()["token"]
            with two.wire(THERE) as far:
                far.ask(type="attach", id=1, data={"token": token})
                with pytest.raises(ConnectionClosed) as closed:
                    home.hear()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4000
                with two.wire(HERE) as again:
                    again.ask(type="attach", id=2, data={"token": token})
                    with pytest.raises(ConnectionClosed) as closed:
                        far.hear()
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.code == 4000
                    again.close()

    def test_a_socket_that_goes_leaves_its_far_session_to_be_taken_up(self, two: WorkersServer) -> None:
        with two.wire(HERE) as home:
            token = home.open()["token"]
        for worker in (THERE, THERE, HERE, THERE):
            with two.wire(worker) as wire:
                told = wire.ask(type="attach", id=10, data={"token": token})
                assert told["type"] == "session", told
                wire.socket.socket.shutdown(2)
        with two.wire(HERE) as wire:
            wire.ask(type="attach", id=10, data={"token": token})
            wire.close()

    def test_a_token_nobody_knows_is_lost_everywhere(self, two: WorkersServer) -> None:
        for worker in (HERE, THERE):
            with two.wire(worker) as wire:
                lost = wire.ask(type="attach", id=1, data={"token": "nobody-ever-had-this-one"})
                assert lost["data"]["code"] == "SESSION_ERROR"


class TestForks:
    @every_format
    def test_copies_are_taken_up_through_any_worker(self, format: Format, two: WorkersServer) -> None:
        with two.wire(HERE, format) as home:
            token = home.open()["token"]
            home.ask(type="reset", id=1, data={"seed": 5})
            with two.wire(THERE, format) as far:
                far.ask(type="attach", id=2, data={"token": token})
                forked = far.ask(type="fork", id=3, data={"n": 2})
                copies = [copy["token"] for copy in forked["data"]["sessions"]]
                assert far.ask(type="fork", id=3, data={"n": 2}) == forked, "made once"
                far.ask(type="attach", id=4, ch=1, data={"token": copies[0]})
                assert far.ask(**step(5), ch=1)["data"]["observation"]["total"] == 6
                with two.wire(HERE, format) as other:
                    other.ask(type="attach", id=4, data={"token": copies[1]})
                    assert other.ask(type="state", id=6)["data"]["step_count"] == 5
                    other.close()
                far.close(1)
                far.close(0)

    def test_no_room_for_all_takes_none(self, two: WorkersServer) -> None:
        before = two.sessions()
        with two.wire(HERE) as home, two.wire(THERE) as far:
            token = home.open()["token"]
            far.ask(type="attach", id=2, data={"token": token})
            assert far.ask(type="fork", id=3, data={"n": 16})["data"]["code"] == "CAPACITY_REACHED"
            far.close()
        eventually(lambda: two.sessions() == before, "nothing was taken")


class TestBaseWire:
    def create(self, two: WorkersServer, worker: int) -> str:
        request = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
        with two.http(worker) as http:
            return str(http.post("/mcp", json=request).json()["result"]["session_id"])

    def test_a_session_is_joined_by_its_id_through_the_other_worker(self, two: WorkersServer) -> None:
        session_id = self.create(two, HERE)
        with two.raw(THERE, f"/ws?session_id={session_id}") as socket:
            socket.send('{"type":"reset","data":{"seed":7}}')
            assert json.loads(socket.recv(PATIENCE_S))["data"]["observation"]["process"] == two.process_of(
                HERE
            )
            socket.send('{"type":"step","data":{}}')
            assert json.loads(socket.recv(PATIENCE_S))["data"]["observation"]["total"] == 8
            with two.raw(THERE, f"/ws?session_id={session_id}") as second:
                assert "already has an attached" in str(second.recv(PATIENCE_S))
            socket.send('{"type":"close"}')
            with pytest.raises(ConnectionClosed):
                socket.recv(PATIENCE_S)
        with two.raw(HERE, f"/ws?session_id={session_id}") as socket:
            socket.send('{"type":"state"}')
            assert json.loads(socket.recv(PATIENCE_S))["data"]["step_count"] == 8

    def test_an_id_nobody_knows(self, two: WorkersServer) -> None:
        with two.raw(THERE, "/ws?session_id=nobody") as socket:
            assert json.loads(socket.recv(PATIENCE_S))["data"]["code"] == "SESSION_ERROR"
