"""A replica of two workers that was told to stop: its sessions are reached through either worker until they
end."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from envtorch.protocol.formats import JSON
from tests.server.test_extended import Wire
from tests.server.workers.support import WorkersServer, step, workers_server
from tests.support import PATIENCE_S, eventually

HERE, THERE = 0, 1
LONG_S = 600
"""A time to finish in that no test waits for."""
NAMED = {"EnvTorch-Replica": "web-1"}
ACTION = json.dumps({"type": "step", "data": {}})


@pytest.fixture
def replica() -> Iterator[WorkersServer]:
    with workers_server(environ={"ENVTORCH_REPLICA": "web-1", "ENVTORCH_FINISH": str(LONG_S)}) as server:
        yield server


@contextmanager
def named_wire(server: WorkersServer, worker: int) -> Iterator[Wire]:
    """A socket of the extended wire, of a client that names its replica."""
    name = Subprotocol("envtorch.v1")
    with server.raw(worker, subprotocols=[name], additional_headers=NAMED) as connection:
        yield Wire(connection, JSON)


@contextmanager
def leaving(server: WorkersServer) -> Iterator[None]:
    """Both workers have been told to stop, and stay, as each has a session of another client."""
    with server.wire(HERE) as one, server.wire(THERE) as other:
        one.open()
        other.open()
        server.process.send_signal(signal.SIGTERM)
        for wire in (one, other):
            assert [message["type"] for message in wire.hear()] == ["draining"]
        yield
        for wire in (one, other):
            wire.say({"type": "close", "id": 1})  # with its last session a worker leaves, answered or not


def created(server: WorkersServer, worker: int) -> str:
    """The id of a session that a client of OpenEnv made at this worker."""
    with server.http(worker) as http:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
        return str(http.post("/mcp", json=asked).json()["result"]["session_id"])


def total(answer: str | bytes) -> Any:
    return json.loads(answer)["data"]["observation"]["total"]


def test_a_session_of_a_leaving_replica_goes_on_through_its_other_worker(replica: WorkersServer) -> None:
    with replica.wire(HERE) as wire:
        token = wire.open()["token"]
        wire.ask(**step(1))
        wire.socket.socket.shutdown(2)
    with leaving(replica), named_wire(replica, THERE) as wire:
        assert [message["type"] for message in wire.hear()] == ["draining"]
        assert wire.ask(type="attach", id=2, data={"token": token})["type"] == "session"
        assert wire.ask(**step(3))["data"]["observation"]["total"] == 2
        wire.close()
    assert replica.process.wait(PATIENCE_S) == 0, "every session has ended"


@pytest.mark.parametrize("worker", [HERE, THERE])
def test_a_session_is_taken_up_by_its_id_at_a_leaving_replica(worker: int, replica: WorkersServer) -> None:
    session_id = created(replica, HERE)
    with leaving(replica), replica.raw(worker, f"/ws?session_id={session_id}") as raw:
        for expected in (1, 2):
            raw.send(ACTION)
            assert total(raw.recv(timeout=PATIENCE_S)) == expected


@pytest.mark.parametrize("path", ["/ws", "/ws?session_id=web-2~unknown", "/ws?session_id=unknown"])
def test_every_other_handshake_is_refused_by_a_leaving_replica(path: str, replica: WorkersServer) -> None:
    with leaving(replica), pytest.raises(InvalidStatus) as refused, replica.raw(THERE, path):
        pass
    assert refused.value.response.status_code == 503


def test_a_handshake_for_a_session_of_another_replica_is_for_a_proxy_to_pass_on(
    replica: WorkersServer,
) -> None:
    elsewhere = "/ws?session_id=web-2~unknown"
    with pytest.raises(InvalidStatus) as refused, replica.raw(HERE, elsewhere):
        pass
    assert json.loads(refused.value.response.body)["code"] == "SESSION_ELSEWHERE"
    with replica.raw(HERE, elsewhere, additional_headers={"EnvTorch-Replica-Gone": "web-2"}) as raw:
        assert json.loads(raw.recv(timeout=PATIENCE_S))["data"]["code"] == "SESSION_ERROR"
    eventually(lambda: replica.sessions() == 0, "none was opened")
