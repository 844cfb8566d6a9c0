"""A web page from elsewhere cannot use its visitor's browser to reach a server on the visitor's machine."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from envtorch import create_app
from envtorch.server.security.hosts import AllowedHosts, AllowedOrigins
from envtorch.server.security.keys import Keys
from envtorch.server.security.login import Login
from tests.server.environments import Obedient
from tests.support import PATIENCE_S, Running, running

LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def served(patch: pytest.MonkeyPatch, **variables: str) -> Any:
    for name, value in variables.items():
        patch.setenv(name, value)
    return create_app(Obedient, max_concurrent_envs=4)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        app = served(patch)
    with running(app) as running_server:
        yield running_server


def status(server: Running, method: str, path: str, **headers: str) -> int:
    """The status of a request with exactly these headers beside what HTTP needs."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(method, server.url + path, headers=sent).status_code


def handshake(server: Running, host: str) -> bytes:
    """The answer to a WebSocket handshake that is addressed to `host`."""
    address, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as raw:
        raw.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode()
        )
        return raw.recv(1000)


class TestHosts:
    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1"]
    )
    def test_a_name_that_was_rebound_to_this_machine_reaches_nothing(
        self, server: Running, host: str
    ) -> None:
        assert status(server, "GET", "/metadata", host=host) == 403
        assert status(server, "POST", "/reset", host=host) == 403
        assert status(server, "POST", "/mcp", host=host) == 403
        assert handshake(server, host).startswith(b"HTTP/1.1 403 ")

    @pytest.mark.parametrize(
        "host",
        ["localhost", "localhost:1", "LOCALHOST", "app.localhost", "127.0.0.1", "127.8.9.1:80", "[::1]:80"],
    )
    def test_the_machines_own_names_do(self, server: Running, host: str) -> None:
        assert status(server, "GET", "/metadata", host=host) == 200

    @pytest.mark.parametrize("path", ["/health", "/ready"])
    def test_probes_may_use_any_name(self, server: Running, path: str) -> None:
        assert status(server, "GET", path, host="10.1.2.3:8000") == 200

    def test_a_request_without_a_host_comes_from_no_browser(self, server: Running) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
            raw.sendall(b"GET /metadata HTTP/1.0\r\n\r\n")
            assert b" 200 " in raw.recv(100)

    def test_a_server_with_a_token_may_be_called_anything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with running(served(monkeypatch, ENVTORCH_TOKEN="t" * 16)) as server:
            shown = {"authorization": f"Bearer {'t' * 16}"}
            assert status(server, "GET", "/metadata", host="env.example", **shown) == 200

    def test_configured_names_are_accepted_and_others_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with running(served(monkeypatch, ENVTORCH_HOSTS="env.example, other.example:81")) as server:
            assert status(server, "GET", "/metadata", host="env.example:80") == 200
            assert status(server, "GET", "/metadata", host="other.example:81") == 200
            assert status(server, "GET", "/metadata", host="localhost") == 200
            assert status(server, "GET", "/metadata", host="evil.example") == 403

    def test_a_star_accepts_every_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with running(served(monkeypatch, ENVTORCH_HOSTS="*")) as server:
            assert status(server, "GET", "/metadata", host="evil.example") == 200

    @pytest.mark.parametrize("address", ["172.17.0.2", "10.42.0.7", "2001:db8::1"])
    def test_containers_are_reached_by_names_they_cannot_know(self, address: str) -> None:
        headers = Headers({"host": "env.default.svc.cluster.local"})
        assert AllowedHosts().accept({"type": "http", "server": (address, 8000)}, headers)

    def test_a_server_on_every_address_is_reached_by_any_name(self) -> None:
        app = create_app(Obedient)
        app.state.env_server.bound(locked=False, exposed=True)
        with running(app) as server:
            assert status(server, "GET", "/metadata", host="env.example") == 200


class TestOrigins:
    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://["},
            {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
            {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize(("method", "path"), [("POST", "/reset"), ("POST", "/mcp"), ("GET", "/state")])
    def test_a_page_from_elsewhere_sends_nothing(
        self, server: Running, method: str, path: str, headers: dict[str, str]
    ) -> None:
        assert httpx.request(method, server.url + path, headers=headers).status_code == 403
        assert server.sessions.active == 0

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"sec-fetch-site": "same-origin", "origin": "https://behind-a-proxy.example"},
            {"sec-fetch-site": "none"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        ],
        ids=str,
    )
    def test_programs_ones_own_page_and_links_do(self, server: Running, headers: dict[str, str]) -> None:
        assert httpx.get(server.url + "/metadata", headers=headers).status_code == 200

    def test_an_allowed_origin_may_send_and_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        friend = {"origin": "https://friend.example"}
        with running(served(monkeypatch, ENVTORCH_ORIGINS=friend["origin"])) as server:
            answer = httpx.post(server.url + "/mcp", json=LIST_TOOLS, headers=friend)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == friend["origin"]
            assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]

    @pytest.mark.parametrize("token", [None, "t" * 16])
    def test_a_preflight_is_answered(self, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
        variables = {"ENVTORCH_ORIGINS": "https://friend.example"}
        variables |= {"ENVTORCH_TOKEN": token} if token is not None else {}
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type, mcp-session-id",
        }
        with running(served(monkeypatch, **variables)) as server:
            friend = httpx.options(server.url + "/mcp", headers={**asked, "origin": "https://friend.example"})
            stranger = httpx.options(server.url + "/mcp", headers={**asked, "origin": "https://evil.example"})
        assert friend.status_code == 200
        assert "DELETE" in friend.headers["access-control-allow-methods"]
        assert "mcp-session-id" in friend.headers["access-control-allow-headers"]
        assert stranger.status_code in (401, 403)
        assert "access-control-allow-origin" not in stranger.headers

    def test_a_star_allows_every_origin(self) -> None:
        assert AllowedOrigins(["*"]).accept({"type": "http"}, Headers({"origin": "https://any.example"}))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@pytest.mark.parametrize("path", ["/mcp", "/reset", "/step"])
def test_only_json_is_taken_for_json(server: Running, path: str, kind: str) -> None:
    body = json.dumps({**LIST_TOOLS, "action": {"do": "x"}})
    answer = httpx.post(server.url + path, content=body, headers={"content-type": kind})
    assert answer.status_code == 415
    assert server.sessions.active == 0


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "application/x+json", None]
)
def test_json_is_taken_however_it_is_announced(server: Running, kind: str | None) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = httpx.post(server.url + "/mcp", content=json.dumps(LIST_TOOLS).encode(), headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("until", ["9" * 5000, "\u0663\u0664", "1e5", "-1", ""])
@pytest.mark.parametrize("mark", ["", "m\u00e4rk", "0" * 64])
def test_a_strange_cookie_is_refused_like_any_other(until: str, mark: str) -> None:
    cookie = f"EnvTorch-Ticket={until}.{mark}".encode().decode("latin-1")
    assert not Login(Keys("t" * 16)).admits("/web", Headers({"cookie": cookie}))


def test_a_cookie_of_thousands_of_digits_is_401(monkeypatch: pytest.MonkeyPatch) -> None:
    app = served(monkeypatch, ENVTORCH_TOKEN="t" * 16)
    app.user_middleware[0].kwargs["has_page"] = True
    with running(app) as server:
        answer = httpx.get(server.url + "/web", headers={"cookie": f"EnvTorch-Ticket={'9' * 5000}.x"})
    assert answer.status_code == 401
