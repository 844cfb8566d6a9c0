"""How many bytes of answers a session keeps for a client that does not acknowledge them, and what it is told.

`Obedient` and its relatives answer with what they were told, so a large action has a large answer. Both are
kept.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.protocol.ledger import KEPT_BYTES
from envtorch.server import create_app
from tests.server.carts import Cart, Push, Seen
from tests.server.environments import AsyncObedient, Count, Obedient, Order, Quick, Report
from tests.server.test_extended import extended
from tests.support import PATIENCE_S, Running, running

THIRD = "x" * (KEPT_BYTES // 6)
"""An action that takes, with its answer, a third of what is kept."""

every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)


@pytest.fixture(
    scope="module",
    params=[(Obedient, None), (Quick, None), (AsyncObedient, None), (Obedient, "process")],
    ids=["thread", "loop", "async", "process"],
)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    environment, isolation = request.param
    config = ConcurrencyConfig(max_concurrent_envs=8, reconnect_grace=60)
    with running(create_app(environment, concurrency_config=config, isolation=isolation)) as running_server:
        yield running_server


def kept(server: Running) -> list[int]:
    """The bytes that each session keeps."""
    return [session.ledger.size for session in server.sessions.all()]


@every_format
def test_a_client_that_never_acknowledges_does_not_fill_the_server(format: Format, server: Running) -> None:
    with extended(server, format) as wire:
        wire.open()
        for id in range(1, 9):
            newest = wire.ask(**wire.step(id, THIRD))
        assert max(kept(server)) <= KEPT_BYTES
        for id in range(1, 7):
            again = wire.ask(**wire.step(id, THIRD))["data"]
            assert (again["code"], again["limit"]) == ("ANSWER_DROPPED", KEPT_BYTES)
            assert "not run again" in again["message"]
            assert wire.ask(**wire.step(id, "other"))["data"]["code"] == "PROTOCOL_ERROR"
        assert wire.ask(**wire.step(8, THIRD)) == newest
        assert wire.ask(type="state", id=9)["data"]["step_count"] == 8
        wire.close()


@every_format
def test_after_a_cut_the_newest_answer_is_there_and_no_other_step_runs_twice(
    format: Format, server: Running
) -> None:
    with extended(server, format) as wire:
        token = wire.open()["token"]
        wire.say(*(wire.step(id, THIRD) for id in range(1, 7)))
        wire.hear_all({6})
        wire.socket.socket.shutdown(2)
    with extended(server, format) as wire:
        assert wire.ask(type="attach", id=7, data={"token": token})["data"]["last_id"] == 6
        wire.say(*(wire.step(id, THIRD) for id in range(1, 7)))
        answers = wire.hear_all(set(range(1, 7)))
        dropped = [answers[id]["data"].get("code") == "ANSWER_DROPPED" for id in range(1, 7)]
        assert dropped == sorted(dropped, reverse=True), "the oldest are dropped first"
        assert dropped[0]
        assert answers[6]["data"]["observation"]["said"] == THIRD
        assert wire.ask(type="state", id=8)["data"]["step_count"] == 6
        wire.close()


@every_format
def test_an_answer_larger_than_the_bound_survives_a_cut(format: Format, server: Running) -> None:
    large = "x" * KEPT_BYTES
    with extended(server, format) as wire:
        token = wire.open()["token"]
        wire.ask(**wire.step(1, THIRD))
        wire.ask(**wire.step(2, large))
        wire.socket.socket.shutdown(2)
    with extended(server, format) as wire:
        wire.ask(type="attach", id=3, data={"token": token})
        assert wire.ask(**wire.step(2, large))["data"]["observation"]["said"] == large
        wire.ask(**wire.step(4, "small"))
        assert max(kept(server)) <= KEPT_BYTES
        assert wire.ask(**wire.step(2, large))["data"]["code"] == "ANSWER_DROPPED"
        wire.close()


@every_format
def test_an_acknowledgement_makes_room(format: Format, server: Running) -> None:
    with extended(server, format) as wire:
        wire.open()
        wire.say(*(wire.step(id, THIRD) for id in (1, 2)))
        wire.hear_all({1, 2})
        wire.ask(**wire.step(3, THIRD, ack=1))
        wire.ask(**wire.step(4, "small"))
        for id, do in ((2, THIRD), (3, THIRD)):
            assert wire.ask(**wire.step(id, do))["type"] == "observation"
        wire.close()


@every_format
def test_the_steps_of_a_batch_are_bounded_in_each_session(format: Format, server: Running) -> None:
    def steps(id: int) -> dict[str, Any]:
        return {"type": "steps", "id": id, "ch": 77, "data": {"ch": [0, 1], "actions": [{"do": THIRD}] * 2}}

    with extended(server, format) as wire:
        wire.open(ch=0)
        wire.open(ch=1)
        for id in range(1, 5):
            wire.say(steps(id))
            heard: set[int] = set()
            while heard != {0, 1}:
                for message in wire.hear():
                    heard |= set(message["data"].get("ch", [message.get("ch", 0)]))
        assert max(kept(server)) <= KEPT_BYTES
        for ch in (0, 1):
            assert wire.ask(**wire.step(1, THIRD, ch=ch))["data"]["code"] == "ANSWER_DROPPED"
            assert wire.ask(**wire.step(4, THIRD, ch=ch))["type"] == "observation"
            assert wire.ask(type="state", id=5, ch=ch)["data"]["step_count"] == 4
            wire.close(ch)


def test_columns_for_several_sessions_count_as_a_whole_in_each() -> None:
    word = "x" * (KEPT_BYTES // 6)
    pushes = [{"force": 1.0, "word": word}, {"force": 1.0, "word": word}]
    with running(create_app(Cart, Push, Seen, max_concurrent_envs=2)) as server, extended(server) as wire:
        for ch in (0, 1):
            wire.open(ch=ch)
            wire.ask(type="reset", id=1 + ch, ch=ch)
        for id in (11, 12, 13):
            asked = {"ch": [0, 1], "actions": pushes}
            assert wire.ask(type="steps", id=id, ch=77, data=asked)["type"] == "observations"
        whole = 2 * len(word)
        assert all(2 * whole <= size <= KEPT_BYTES for size in kept(server)), "the request and its reply"
        for ch in (0, 1):
            step = {"type": "step", "ch": ch, "data": pushes[ch]}
            assert wire.ask(**step, id=11)["data"]["code"] == "ANSWER_DROPPED"
            assert wire.ask(**step, id=13)["data"]["observation"]["position"] == 3.0


def test_over_http_a_repeated_request_whose_answer_was_dropped_is_gone() -> None:
    with (
        running(create_app(Obedient, max_concurrent_envs=2)) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http,
    ):
        http.post("/reset")
        bodies = [{"action": {"do": THIRD}, "request_id": f"step {number}"} for number in range(5)]
        assert [http.post("/step", json=body).status_code for body in bodies] == [200] * 5
        again = http.post("/step", json=bodies[0])
        assert (again.status_code, again.json()["code"]) == (410, "ANSWER_DROPPED")
        assert http.post("/step", json=bodies[4]).status_code == 200
        assert http.get("/state").json()["step_count"] == 5
        assert max(kept(server)) <= KEPT_BYTES


def test_a_vector_acknowledges_for_each_session_while_others_are_awaited() -> None:
    class Client(EnvClient[Order, Report, Count]): ...

    Obedient.gate.clear()
    with (
        running(create_app(Obedient, max_concurrent_envs=2)) as server,
        Client.vector(server.url, 2) as envs,
    ):
        envs.reset()
        envs.send({0: Order(do="wait")})  # so that something is owed all the time
        for _ in range(5):
            envs.send({1: Order(do="again")})
            assert set(envs.receive()) == {1}
        assert [len(session.ledger) for session in server.sessions.all()] == [1, 1]
        Obedient.gate.set()
        assert set(envs.receive()) == {0}
