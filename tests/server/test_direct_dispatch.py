"""The routes of an episode are called without the framework's stack only where that makes no difference."""

import base64
import os
import socket as sockets
from collections.abc import Awaitable, Callable

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import HTTPEnvServer, create_app
from tests import patient
from tests.support import PATIENCE_S, Running, running

STEP = {"action": {"message": "hello"}}


def is_dispatched(server: Running, path: str, method: str) -> bool:
    return bool(server.app.dispatch.takes({"type": "http", "path": path, "method": method, "headers": []}))  # type: ignore[attr-defined]


def test_an_episode_is_answered_in_front_of_the_framework() -> None:
    with running(create_app(EchoEnvironment, sessions=1)) as server:
        assert patient.post(server.url + "/reset").status_code == 200
        assert (
            patient.post(server.url + "/step", json=STEP).json()["observation"]["echoed_message"] == "hello"
        )
        assert patient.get(server.url + "/state").json()["step_count"] == 1
        assert is_dispatched(server, "/step", "POST")


def test_what_is_no_route_of_ours_goes_to_the_framework() -> None:
    with running(create_app(EchoEnvironment)) as server:
        assert patient.get(server.url + "/step").status_code == 405
        assert patient.get(server.url + "/nowhere").status_code == 404
        assert "/step" in patient.get(server.url + "/openapi.json").json()["paths"]
        assert not is_dispatched(server, "/step", "GET")


def locked() -> None:
    raise HTTPException(401, "the author's lock")


def by_application() -> FastAPI:
    app = FastAPI(dependencies=[Depends(locked)])
    HTTPEnvServer(EchoEnvironment, sessions=2).register_routes(app)
    return app


def by_router() -> FastAPI:
    app, router = FastAPI(), APIRouter(dependencies=[Depends(locked)])
    HTTPEnvServer(EchoEnvironment, sessions=2).register_routes(router)
    app.include_router(router)
    return app


@pytest.mark.parametrize("make", [by_application, by_router])
def test_dependencies_of_an_author_hold_for_our_routes(make: Callable[[], FastAPI]) -> None:
    with running(make()) as server:
        for method, path in [("POST", "/reset"), ("POST", "/step"), ("GET", "/state"), ("GET", "/metadata")]:
            answer = patient.request(method, server.url + path, json=STEP if method == "POST" else None)
            assert answer.status_code == 401, path


def test_an_author_who_handles_errors_handles_all_of_them() -> None:
    app = create_app(EchoEnvironment, sessions=1)
    app.add_exception_handler(RuntimeError, lambda request, error: JSONResponse({}, 418))
    with running(app) as server:
        assert not is_dispatched(server, "/step", "POST")
        assert patient.post(server.url + "/reset").status_code == 200


def test_middleware_of_an_author_sees_every_request() -> None:
    seen: list[str] = []

    class Watching:
        def __init__(self, app: ASGIApp) -> None:
            self._app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope.get("path", ""))
            await self._app(scope, receive, send)

    app = create_app(EchoEnvironment, sessions=1)
    app.add_middleware(Watching)
    with running(app) as server:
        patient.post(server.url + "/reset")
        patient.post(server.url + "/step", json=STEP)
        with server.socket():
            pass
    assert [path for path in seen if path] == ["/reset", "/step", "/ws"]


def test_a_route_that_an_author_put_in_place_of_ours_is_called() -> None:
    async def own(request: Request) -> Response:
        return JSONResponse({"mine": True})

    app = create_app(EchoEnvironment, sessions=1)
    with running(app) as server:
        assert "observation" in patient.post(server.url + "/reset").json()
        app.router.routes.insert(0, Route("/reset", own, methods=["POST"]))
        assert patient.post(server.url + "/reset").json() == {"mine": True}


def test_the_gate_is_in_front_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVTORCH_TOKEN", "secret-of-this-test")
    with running(create_app(EchoEnvironment)) as server:
        assert patient.post(server.url + "/step", json=STEP).status_code == 401
        assert patient.get(server.url + "/openapi.json").status_code == 401
        told = patient.post(server.url + "/reset", headers={"Authorization": "Bearer secret-of-this-test"})
        assert told.status_code == 200


async def _echo(websocket: WebSocket) -> None:
    await websocket.accept(subprotocol=websocket.scope["subprotocols"][0])
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect:
        pass


async def _refuse(websocket: WebSocket) -> None:
    await websocket.close()


async def _return(websocket: WebSocket) -> None:
    pass


async def _fail(websocket: WebSocket) -> None:
    raise RuntimeError("of this test")


def _handshake(server: Running, path: str, **headers: str) -> bytes:
    """What the server answers to a handshake, up to the end of its header."""
    told = {
        "Host": "127.0.0.1",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    port = int(server.url.rsplit(":", 1)[1])
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    with sockets.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer and (more := raw.recv(4096)):
            answer += more
    return answer


@pytest.mark.parametrize(
    ("endpoint", "status"), [(_echo, b"101"), (_refuse, b"403"), (_return, b"500"), (_fail, b"500")]
)
def test_a_socket_of_an_author_is_the_servers_own(
    endpoint: Callable[[WebSocket], Awaitable[None]], status: bytes
) -> None:
    app = create_app(EchoEnvironment)
    app.router.routes.append(WebSocketRoute("/mine", endpoint))
    with running(app, log_level="critical") as server:
        answer = _handshake(server, "/mine", Sec_WebSocket_Protocol="one, two")
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        if endpoint is _echo:
            assert b"one" in answer
            from websockets.sync.client import connect
            from websockets.typing import Subprotocol

            url = server.url.replace("http://", "ws://") + "/mine"
            with connect(url, subprotocols=[Subprotocol("x")], open_timeout=PATIENCE_S) as raw:
                raw.send("hello")
                assert raw.recv(timeout=PATIENCE_S) == "hello"


@pytest.mark.parametrize(
    "wrong",
    [
        {"Sec_WebSocket_Key": "short"},
        {"Sec_WebSocket_Key": "not base64 at all!!!"},
        {"Sec_WebSocket_Version": "8"},
        {"Sec_WebSocket_Protocol": "with spaces, and ;"},
    ],
)
def test_a_handshake_that_breaks_the_rules_is_refused(wrong: dict[str, str]) -> None:
    with running(create_app(EchoEnvironment)) as server:
        assert _handshake(server, "/ws", **wrong).startswith(b"HTTP/1.1 4")
        assert server.sessions.active == 0
        assert _handshake(server, "/ws").startswith(b"HTTP/1.1 101")
