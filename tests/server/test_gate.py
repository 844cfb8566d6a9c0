"""Every door has the same lock: tokens, origins, sizes."""

import logging
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from envtorch import EnvClient, HTTPEnvClient, create_app
from envtorch.errors import ConfigurationError, Unauthorized
from envtorch.server.security.keys import Keys
from envtorch.server.serve import is_loopback
from envtorch.settings import Settings
from tests import patient
from tests.server.environments import Count, Obedient, Order, Report
from tests.support import PATIENCE_S, Running, running

TOKEN = "a-token-that-is-long-enough"
built: list[Obedient] = []


def factory() -> Obedient:
    built.append(Obedient())
    return built[-1]


class ObedientEnv(EnvClient[Order, Report, Count]): ...


class ObedientHttp(HTTPEnvClient[Order, Report, Count]): ...


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file = tmp_path_factory.mktemp("keys") / "tokens"
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    file.write_text(f"{TOKEN}  # the trainer\nexpired-{TOKEN} {yesterday}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVTORCH_TOKEN_FILE", str(file))
        app = create_app(factory, Order, Report, max_concurrent_envs=2)

    @app.get("/added/later")
    def added() -> str:
        return "inside"

    with running(app) as running_server:
        yield running_server


HTTP_DOORS: list[tuple[str, str]] = [
    ("POST", "/reset"),
    ("POST", "/step"),
    ("GET", "/state"),
    ("POST", "/close"),
    ("POST", "/mcp"),
    ("GET", "/metrics"),
    ("GET", "/metadata"),
    ("GET", "/schema"),
    ("GET", "/list_environments"),
    ("GET", "/factory/splits"),
    ("POST", "/factory/tasks"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/added/later"),
]
SHOWN: dict[str, dict[str, str]] = {
    "missing": {},
    "wrong": {"Authorization": "Bearer something-else"},
    "expired": {"Authorization": f"Bearer expired-{TOKEN}"},
    "of another scheme": {"Authorization": f"Basic {TOKEN}"},
    "cut short": {"Authorization": f"Bearer {TOKEN[:-1]}"},
}
every_wrong_token = pytest.mark.parametrize("shown", SHOWN)


@every_wrong_token
@pytest.mark.parametrize(("method", "path"), HTTP_DOORS)
def test_http_doors_are_locked(method: str, path: str, shown: str, server: Running) -> None:
    before = len(built)
    answer = patient.request(
        method, server.url + path, headers=SHOWN[shown], json={} if method == "POST" else None
    )
    assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHORIZED")
    assert TOKEN not in answer.text
    assert len(built) == before, "refused before any environment is built"


@every_wrong_token
@pytest.mark.parametrize("path", ["/ws", "/mcp", "/ws?session_id=x"])
@pytest.mark.parametrize("subprotocols", [None, ["envtorch.v1"]], ids=["base", "extended"])
def test_websocket_doors_are_locked(path: str, subprotocols: Any, shown: str, server: Running) -> None:
    before = len(built)
    url = server.url.replace("http", "ws") + path
    with pytest.raises(InvalidStatus) as caught:
        connect(url, additional_headers=SHOWN[shown], subprotocols=subprotocols).__enter__()
    assert caught.value.response.status_code == 401
    assert len(built) == before


@pytest.mark.parametrize("path", ["/health", "/ready", "/live"])
def test_probes_need_no_token(path: str, server: Running) -> None:
    assert patient.get(server.url + path).status_code == 200


def test_the_right_token_opens_every_way(server: Running) -> None:
    with ObedientEnv(server.url, token=TOKEN) as env:
        assert env.reset(seed=1).observation.said == "seed 1"
    with ObedientHttp(server.url, default_headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        assert http.reset(seed=2).observation.said == "seed 2"


def test_clients_say_that_they_are_not_let_in(server: Running) -> None:
    with pytest.raises(Unauthorized, match="wants a token"):
        ObedientEnv(server.url, token="wrong").reset()
    with ObedientHttp(server.url) as http, pytest.raises(Unauthorized):
        http.reset()


def test_a_token_is_not_shown_by_a_client_that_is_printed() -> None:
    client = ObedientEnv("http://nowhere", token=TOKEN)
    assert TOKEN not in repr(client)
    assert TOKEN not in repr(client._options)
    assert TOKEN not in repr(Settings.from_environ({"ENVTORCH_TOKEN": TOKEN}))


def test_one_sessions_token_does_not_open_anothers(server: Running) -> None:
    lock = {"Authorization": f"Bearer {TOKEN}"}
    one = patient.post(server.url + "/reset", headers=lock).headers["EnvTorch-Session"]
    two = patient.post(server.url + "/reset", headers=lock).headers["EnvTorch-Session"]
    assert one != two
    patient.post(server.url + "/step", json={"action": {}}, headers={**lock, "EnvTorch-Session": one})
    state = patient.get(server.url + "/state", headers={**lock, "EnvTorch-Session": two}).json()
    assert state["step_count"] == 0
    for token in (one, two):
        patient.post(server.url + "/close", headers={**lock, "EnvTorch-Session": token})


def test_session_tokens_are_in_no_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    lock = {"Authorization": f"Bearer {TOKEN}"}
    with caplog.at_level(logging.DEBUG):
        token = patient.post(server.url + "/reset", headers=lock).headers["EnvTorch-Session"]
        body = {"action": {"do": "fail"}}
        patient.post(server.url + "/step", json=body, headers={**lock, "EnvTorch-Session": token})
        patient.post(server.url + "/close", headers={**lock, "EnvTorch-Session": token})
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("envtorch")]
    assert any("kaboom" in line for line in ours)
    assert not any(token in line or TOKEN in line for line in ours)


@pytest.fixture
def friendly() -> Iterator[Running]:
    """A server that one other site may reach from its visitors' browsers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVTORCH_ORIGINS", "https://friend.example")
        app = create_app(Obedient, max_concurrent_envs=4)
    with running(app) as running_server:
        yield running_server


def open_from(server: Running, origin: str) -> None:
    url = server.url.replace("http", "ws") + "/ws"
    with connect(url, origin=Origin(origin)) as websocket:
        websocket.send('{"type":"state"}')
        websocket.recv(timeout=PATIENCE_S)


def test_a_page_from_elsewhere_opens_no_socket(friendly: Running) -> None:
    with pytest.raises(InvalidStatus) as caught:
        open_from(friendly, "https://evil.example")
    assert caught.value.response.status_code == 403


def test_ones_own_page_and_friends_do(friendly: Running) -> None:
    open_from(friendly, friendly.url)
    open_from(friendly, "https://friend.example")


def test_a_body_that_is_too_large_is_refused_while_it_is_read(server: Running) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(120):
            yield b" " * 1024 * 1024

    lock = {"Authorization": f"Bearer {TOKEN}"}
    try:
        answer = patient.post(server.url + "/step", content=endless(), headers=lock)
        assert answer.status_code == 413
    except (httpx.WriteError, httpx.ReadError):
        pass  # the server hung up on it, which is as clear
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
        head = [
            "POST /step HTTP/1.1",
            f"Host: {host}",
            "Content-Length: 200000000",
            f"Authorization: Bearer {TOKEN}",
        ]
        raw.sendall("\r\n".join([*head, "", ""]).encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


class TestKeys:
    def test_a_file_is_read_again_when_it_changes(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text("first\n")
        keys = Keys(file=file)
        assert keys.accept("first")
        file.write_text("second\n")
        os.utime(file, ns=(1, 1))
        assert keys.accept("second")
        assert not keys.accept("first")

    def test_a_token_is_good_until_its_time(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        file.write_text("brief 2027-01-01T00:00:00+00:00\n")
        end = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
        assert Keys(file=file, clock=lambda: end - 1).accept("brief")
        assert not Keys(file=file, clock=lambda: end).accept("brief")

    def test_what_is_wrong_with_a_file_is_said_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            Keys(file=tmp_path / "nothing")
        (tmp_path / "tokens").write_text("token someday\n")
        with pytest.raises(ConfigurationError, match="'someday' in the token file is not a time"):
            Keys(file=tmp_path / "tokens")

    @pytest.mark.parametrize("text", ["", " \n\t\n", "# none yet\n"])
    def test_a_file_without_a_token_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tokens").write_text(text)
        with pytest.raises(ConfigurationError, match="has no token in it"):
            Keys(file=tmp_path / "tokens")

    def test_a_file_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "tokens").write_bytes(b"\xff\xfe\x00t")
        with pytest.raises(ConfigurationError, match="the token file cannot be read"):
            Keys(file=tmp_path / "tokens")

    @pytest.mark.parametrize("text", ["", " ", "\n"])
    def test_a_variable_without_a_token_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigurationError, match="ENVTORCH_TOKEN is set, and there is no token in it"):
            Settings.from_environ({"ENVTORCH_TOKEN": text})

    def test_the_line_break_after_a_token_is_no_part_of_it(self) -> None:
        assert Settings.from_environ({"ENVTORCH_TOKEN": f"{TOKEN}\n"}).token == TOKEN


def test_only_loopback_is_private() -> None:
    with socket.create_server(("127.0.0.1", 0)) as near, socket.create_server(("0.0.0.0", 0)) as open_to_all:
        assert is_loopback(near)
        assert not is_loopback(open_to_all)


def test_a_websocket_without_a_token_is_no_error_of_the_servers(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger="envtorch.server.security.gate"):
            for path in ("/ws", "/mcp"):
                with pytest.raises(InvalidStatus) as refused:
                    connect(server.url.replace("http", "ws") + path, open_timeout=PATIENCE_S)
                assert refused.value.response.status_code == 401
            assert httpx.get(server.url + "/health", timeout=PATIENCE_S).status_code == 200
    finally:
        uvicorn_log.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
    assert caplog.text.count("refused: this server requires a token") == 2
