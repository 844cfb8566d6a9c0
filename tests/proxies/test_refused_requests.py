"""Replicas that drop, refuse or do not take connections: who gets their requests, and what is told."""

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from envtorch.server.sessions.other_replicas import GONE_HEADER
from tests.proxies.proxies import Proxy
from tests.support import PATIENCE_S, eventually


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None: ...  # a proxy's check has hung up


class Backend:
    """A replica that answers every request with one status; 0 drops the connection once it has read it."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.read: list[tuple[str, bytes]] = []
        self.gone: list[str | None] = []
        backend = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                backend.read.append((self.path, body))
                backend.gone.append(self.headers.get(GONE_HEADER))
                self.answer(backend.status)

            def do_GET(self) -> None:
                self.answer(200)  # a proxy's check, or ours

            def answer(self, status: int) -> None:
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.base_url: str | None = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(params=["nginx", "haproxy"])
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(request.param, tmp_path) as proxy:
        yield proxy


@pytest.fixture
def backends() -> Iterator[list[Backend]]:
    with ExitStack() as started:
        made = [Backend(200) for _ in range(3)]
        for backend in made:
            started.callback(backend.close)
        yield made


def post(proxy: Proxy, path: str, **headers: str) -> int:
    return httpx.post(
        f"{proxy.url}{path}", json={"seed": 1}, headers=headers, trust_env=False, timeout=PATIENCE_S
    ).status_code


def named(backends: list[Backend]) -> dict[str, Backend]:
    return {f"web-{number}": backend for number, backend in enumerate(backends)}


@pytest.mark.parametrize("path", ["/reset", "/mcp"])
def test_a_request_that_ends_a_connection_reaches_one_replica(
    proxy: Proxy, backends: list[Backend], path: str
) -> None:
    for backend in backends:
        backend.status = 0
    proxy.configure(named(backends))
    assert post(proxy, path) == 502
    assert sum(len(backend.read) for backend in backends) == 1


def test_a_replica_that_answers_503_is_passed_over_and_the_last_answer_is_passed_on(
    tmp_path: Path, backends: list[Backend]
) -> None:
    with Proxy("nginx", tmp_path) as proxy:
        backends[0].status = backends[1].status = 503
        proxy.configure(named(backends))
        assert [post(proxy, "/reset") for _ in range(6)] == [200] * 6
        backends[2].status = 503
        for backend in backends:
            backend.read.clear()
        assert post(proxy, "/reset") == 503
        assert [len(backend.read) for backend in backends] == [1, 1, 1]


def test_a_replica_that_is_down_is_passed_over(proxy: Proxy, backends: list[Backend]) -> None:
    proxy.configure(named(backends))
    backends[0].close()
    backends[1].close()
    eventually(lambda: post(proxy, "/reset") == 200, "the proxy has noticed")
    assert [post(proxy, "/reset") for _ in range(6)] == [200] * 6


def test_a_replica_that_is_down_is_passed_over_after_one_that_answered_503(
    tmp_path: Path, backends: list[Backend]
) -> None:
    with Proxy("nginx", tmp_path) as proxy:
        proxy.configure(named(backends))
        backends[0].close()
        backends[1].status = 503
        told = [post(proxy, "/reset") for _ in range(6)]
        assert set(told) <= {200, 503}
        assert 200 in told


def test_a_replica_may_have_any_name(proxy: Proxy, backends: list[Backend]) -> None:
    names = ["0", "00", "a.b"]
    proxy.configure(dict(zip(names, backends, strict=True)))
    for name, backend in zip(names, backends, strict=True):
        for path in ("/step", "/reset"):
            assert post(proxy, path, **{"EnvTorch-Session": f"{name}~x"}) == 200
        assert [path for path, _ in backend.read] == ["/step", "/reset"]


class Deaf:
    """A replica that takes no connection any more, once its queue of them is full."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._address = self._listener.getsockname()
        self.base_url: str | None = f"http://127.0.0.1:{self._address[1]}"
        self._waiting: list[socket.socket] = []

    def fill(self) -> None:
        for _ in range(120):
            self._waiting.append(socket.socket())
            self._waiting[-1].setblocking(False)
            self._waiting[-1].connect_ex(self._address)

    def close(self) -> None:
        for one in (*self._waiting, self._listener):
            one.close()


CHECKED_S = 4.0
"""The proxy has looked at every replica once."""
DEAF_S = 16.0


@pytest.mark.slow
def test_a_replica_that_takes_no_connection_for_a_while_is_not_gone(
    proxy: Proxy, backends: list[Backend]
) -> None:
    with ExitStack() as opened:
        deaf = Deaf()
        opened.callback(deaf.close)
        proxy.configure({"web-1": deaf, "web-2": backends[0]})
        threading.Event().wait(CHECKED_S)
        deaf.fill()
        threading.Event().wait(DEAF_S)
        for _ in range(3):
            post(proxy, "/step", **{"EnvTorch-Session": "web-1~x"})
        assert backends[0].gone == [None] * 3, "another one was asked, and not told that it is gone"


def test_a_replica_that_is_down_is_gone_soon(proxy: Proxy, backends: list[Backend]) -> None:
    proxy.configure(named(backends))
    assert post(proxy, "/step", **{"EnvTorch-Session": "web-0~x"}) == 200
    backends[0].close()

    def is_gone() -> bool:
        post(proxy, "/step", **{"EnvTorch-Session": "web-0~x"})
        return "web-0" in backends[1].gone + backends[2].gone

    eventually(is_gone, "the proxy has noticed", 20.0)
