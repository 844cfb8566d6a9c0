"""What a server tells of itself needs no session, and gives way to an author's own routes."""

import logging
import threading

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from websockets.exceptions import ConnectionClosed

from envtorch import create_app
from envtorch.server import HTTPEnvServer
from tests.server.environments import Obedient, Order, Report, Unbuildable
from tests.support import PATIENCE_S, eventually, running


@pytest.mark.parametrize("path", ["/metadata", "/schema"])
def test_it_is_told_while_a_socket_plays_and_right_after_it_closed(path: str) -> None:
    with running(create_app(Obedient, sessions=1)) as server:
        for _ in range(10):
            with server.socket() as raw:
                raw.send('{"type":"reset","data":{}}')
                raw.recv(timeout=PATIENCE_S)
                assert httpx.get(server.url + path, timeout=PATIENCE_S).status_code == 200
                raw.send('{"type":"close"}')
            assert httpx.get(server.url + path, timeout=PATIENCE_S).status_code == 200


def test_a_close_message_frees_the_slot_although_the_client_stays() -> None:
    with running(create_app(Obedient, sessions=1)) as server, server.socket() as raw:
        raw.send('{"type":"reset","data":{}}')
        raw.recv(timeout=PATIENCE_S)
        # A client that never answers the close frame: its reader is not asked for anything more.
        raw.send('{"type":"close"}')
        eventually(lambda: server.sessions.active == 0, "the slot is free")
        with server.socket() as other:
            other.send('{"type":"reset","data":{}}')
            assert "observation" in str(other.recv(timeout=PATIENCE_S))
        with pytest.raises(ConnectionClosed):
            raw.recv(timeout=PATIENCE_S)


def test_state_answers_right_after_a_socket_closed() -> None:
    with running(create_app(Obedient, sessions=1)) as server:
        for _ in range(5):
            with server.socket() as raw:
                raw.send('{"type":"reset","data":{}}')
                raw.recv(timeout=PATIENCE_S)
                raw.send('{"type":"close"}')
            assert httpx.get(server.url + "/state", timeout=PATIENCE_S).status_code == 200


def test_an_environment_that_cannot_be_built_is_not_built_anew_for_each_probe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = []

    def factory() -> Unbuildable:
        attempts.append(threading.get_ident())
        return Unbuildable()

    app = create_app(factory, Order, Report)
    with caplog.at_level(logging.ERROR), running(app) as server:
        answers = [httpx.get(server.url + "/health", timeout=PATIENCE_S) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [503] * 5
    assert all("no such licence server" in answer.json()["detail"] for answer in answers)
    assert len(attempts) == 1
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.parametrize(("method", "path"), [("GET", "/metrics"), ("GET", "/ready"), ("POST", "/close")])
@pytest.mark.parametrize("how", ["a route", "a router"])
def test_an_authors_own_route_wins_although_it_was_added_later(method: str, path: str, how: str) -> None:
    app = create_app(Obedient, sessions=1)
    if how == "a route":
        app.add_api_route(path, lambda: "mine", methods=[method])
    else:
        router = APIRouter()
        router.add_api_route(path, lambda: "mine", methods=[method])
        app.include_router(router)
    with running(app) as server:
        assert httpx.request(method, server.url + path).json() == "mine"


def test_without_one_ours_is_there() -> None:
    with running(create_app(Obedient, sessions=1)) as server:
        assert httpx.get(server.url + "/ready").json() == {"ready": True}
        assert httpx.post(server.url + "/close").json() == {"closed": False}
        assert b"envtorch_sessions" in httpx.get(server.url + "/metrics").content
        assert httpx.put(server.url + "/ready").status_code == 405
        assert httpx.get(server.url + "/live").json() == {"live": True, "sessions": 0}
        assert b"envtorch_sessions_capacity 1.0\n" in httpx.get(server.url + "/metrics").content


def test_routes_work_under_a_prefix() -> None:
    app, router = FastAPI(), APIRouter()
    HTTPEnvServer(Obedient, sessions=1).register_routes(router)
    app.include_router(router, prefix="/env")
    with running(app) as server, httpx.Client(base_url=server.url + "/env", timeout=PATIENCE_S) as client:
        assert client.post("/reset").status_code == 200
        assert client.post("/step", json={"action": {"do": "x"}}).json()["observation"]["said"] == "x"
        assert client.get("/ready").status_code == 503  # its one session is taken


def test_the_document_describes_what_a_step_takes() -> None:
    document = create_app(Obedient).openapi()
    body = document["paths"]["/step"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["action"]
    assert document["paths"]["/reset"]["post"]["requestBody"]["required"] is False
