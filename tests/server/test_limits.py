"""What one peer can cost the server: parts, waiting requests, unread answers, half-open connections,
sizes."""

import json
import os
import resource
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from envtorch import create_app
from tests.server.environments import WAYS, Obedient, Quick
from tests.support import PATIENCE_S, Running, eventually, running

EXTENDED = Subprotocol("envtorch.v1")
SMALL = 64 * 1024


@pytest.fixture(params=list(WAYS))
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    environment, options = WAYS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVTORCH_MAX_MESSAGE_BYTES", str(SMALL))
        app = create_app(environment, max_concurrent_envs=8)
    with running(app, **options) as running_server:
        yield running_server


def raw_socket(server: Running, subprotocol: str | None = None) -> socket.socket:
    """A WebSocket after its handshake, as bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    offered = f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol else ""
    raw.sendall(
        f"GET /ws HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n{offered}\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += raw.recv(1)
    assert b" 101 " in head
    return raw


def frame(opcode: Opcode, payload: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


def request(id: int, type: str, **fields: Any) -> bytes:
    return json.dumps({"type": type, "id": id, **fields}).encode()


def test_a_message_of_many_parts_costs_no_more_than_its_size() -> None:
    parts = b"".join(frame(Opcode.CONT, b" ", fin=False) for _ in range(200_000))
    with running(create_app(Quick, max_concurrent_envs=2)) as server, raw_socket(server) as raw:
        before = time.process_time()
        raw.sendall(frame(Opcode.TEXT, b"{", fin=False))
        try:
            for at in range(0, len(parts), 65536):
                raw.sendall(parts[at : at + 65536])
            raw.settimeout(20)
            while raw.recv(65536):
                pass
        except OSError:
            pass  # the server has hung up
        assert httpx.get(server.url + "/health", timeout=PATIENCE_S).status_code == 200
        # This process sends, frames and serves; a quadratic join alone would take many times as much.
        assert time.process_time() - before < 5


def test_a_message_of_a_few_parts_is_answered(server: Running) -> None:
    with server.socket() as raw:
        raw.send(iter(['{"type":', '"reset",', '"data":{}}']))
        assert json.loads(raw.recv(timeout=PATIENCE_S))["type"] == "observation"


def test_requests_that_wait_are_limited_for_each_socket(server: Running) -> None:
    Obedient.gate.clear()
    url = server.url.replace("http", "ws") + "/ws"
    count = 4000
    with connect(url, subprotocols=[EXTENDED], ping_interval=None, max_size=None) as raw:
        raw.send(request(1, "session"))
        raw.recv(timeout=PATIENCE_S)
        raw.send(request(2, "reset"))
        raw.recv(timeout=PATIENCE_S)
        is_blocking = server.sessions.factory.environment_class is Obedient
        if is_blocking:
            raw.send(request(3, "step", data={"do": "wait"}))

        def send_all() -> None:
            for id in range(4, count):
                raw.send(request(id, "step", data={"do": "x" * 1000}))

        sender = threading.Thread(target=send_all)
        sender.start()
        session = server.sessions.all()[0]
        try:
            if is_blocking:
                time.sleep(1.0)
                assert session.ledger.newest < 1000, "the server went on reading"
        finally:
            Obedient.gate.set()
        answered = {
            json.loads(raw.recv(timeout=PATIENCE_S))["id"] for _ in range(count - (3 if is_blocking else 4))
        }
        sender.join(timeout=PATIENCE_S)
        assert answered == set(range(3 if is_blocking else 4, count))


def test_closes_that_wait_for_their_session_are_limited_for_each_socket() -> None:
    count = 1000
    with running(create_app(Quick, sessions=1)) as server, ExitStack() as sockets:
        url = server.url.replace("http", "ws") + "/ws"
        holder, raw = (
            sockets.enter_context(connect(url, subprotocols=[EXTENDED], ping_interval=None, max_size=None))
            for _ in range(2)
        )
        holder.send(request(1, "session"))
        holder.recv(timeout=PATIENCE_S)
        raw.send(request(1, "session", data={"wait_s": 100}))
        eventually(lambda: server.sessions.slots.waiting == 1, "it waits for a slot")

        def send_all() -> None:
            for id in range(2, count):
                raw.send(request(id, "close", data="x" * 50_000))

        sender = threading.Thread(target=send_all)
        sender.start()
        sender.join(timeout=3.0)
        assert sender.is_alive(), "the server went on reading"
        holder.send(request(2, "close"))
        answers: dict[int, str] = {}
        while len(answers) < count - 1:
            answer = json.loads(raw.recv(timeout=PATIENCE_S))
            answers[answer["id"]] = answer["type"]
        sender.join(timeout=PATIENCE_S)
    assert [answers.pop(1), answers.pop(2)] == ["session", "closed"]
    assert set(answers.values()) == {"error"}, "there is no session any more"


def resident_mb(process: int) -> float:
    with open(f"/proc/{process}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.fixture
def own_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own, whose memory and descriptors can be looked at."""
    with OwnProcess() as found:
        yield found


class OwnProcess:
    def __init__(self, **variables: str) -> None:
        self._variables = variables

    def __enter__(self) -> tuple[str, subprocess.Popen[str]]:
        code = (
            "import socket, resource, sys\n"
            "limit = int(sys.argv[1])\n"
            "if limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
            "from envtorch import create_app\n"
            "from envtorch.server.serve import serve\n"
            "from tests.server.environments import Obedient\n"
            "app = create_app(Obedient, max_concurrent_envs=16)\n"
            "listener = socket.create_server(('127.0.0.1', 0), backlog=2048)\n"
            "print(listener.getsockname()[1], flush=True)\n"
            "serve(app, listener=listener, drain_s=0.0)\n"
        )
        limit = self._variables.pop("limit", "0")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, limit],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._variables},
        )
        assert self._process.stdout is not None
        url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        eventually(lambda: _answers(url), "the server answers", 30)
        return url, self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _answers(url: str, **headers: str) -> bool:
    try:
        return httpx.get(url + "/ready", headers=headers, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("subprotocol", [None, "envtorch.v1"])
def test_peers_that_never_read_hold_little(
    own_process: tuple[str, subprocess.Popen[str]], subprotocol: str | None
) -> None:
    url, process = own_process
    server = Running(url, None)  # type: ignore[arg-type]
    before = resident_mb(process.pid)
    with ExitStack() as stack:
        peers = [stack.enter_context(raw_socket(server, subprotocol)) for _ in range(5)]
        senders = [threading.Thread(target=send_much, args=(peer, subprotocol)) for peer in peers]
        for sender in senders:
            sender.start()
        most = 0.0
        for _ in range(40):
            time.sleep(0.1)
            most = max(most, resident_mb(process.pid))
        for peer in peers:
            peer.close()
        for sender in senders:
            sender.join(timeout=PATIENCE_S)
    assert most - before < 700, "5 peers of 200 MB each"


def send_much(peer: socket.socket, subprotocol: str | None) -> None:
    """Pipeline 200 steps of a megabyte, each to be echoed, and read no answer."""
    data = {"do": "x" * 1_000_000}
    first = [request(1, "session"), request(2, "reset")] if subprotocol else [b'{"type":"reset","data":{}}']
    try:
        peer.settimeout(3.0)
        for message in first:
            peer.sendall(frame(Opcode.TEXT, message))
        time.sleep(0.3)
        for id in range(3, 203):
            step = {"type": "step", "data": data, **({"id": id} if subprotocol else {})}
            peer.sendall(frame(Opcode.TEXT, json.dumps(step).encode()))
    except OSError:
        pass  # the server does not read on, or the test is over


def test_half_open_connections_do_not_close_a_locked_server() -> None:
    token = secrets.token_hex(8)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert most >= 512
    with OwnProcess(ENVTORCH_TOKEN=token, limit="200") as (url, _), ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        for number in range(230):
            raw = stack.enter_context(socket.socket())
            raw.settimeout(5)
            try:
                raw.connect((host, int(port)))
                raw.sendall(b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\n" if number % 2 else b"")
            except OSError:
                break  # there is no room left, which is the point
        lock = {"Authorization": f"Bearer {token}"}

        def is_served() -> bool:
            try:
                return httpx.post(url + "/reset", headers=lock, timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        eventually(is_served, "a client with the token is served", 30)


def test_bodies_that_trickle_in_do_not_close_a_server() -> None:
    with OwnProcess(limit="200") as (url, _), ExitStack() as stack:
        host, port = url.removeprefix("http://").split(":")
        for _ in range(230):
            raw = stack.enter_context(socket.socket())
            raw.settimeout(5)
            try:
                raw.connect((host, int(port)))
                raw.sendall(b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{")
            except OSError:
                break  # there is no room left, which is the point
        eventually(lambda: _answers(url), "another client is served", 15)


def test_a_header_that_is_never_finished_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envtorch.server.transport.http_connection.HEADER_TIMEOUT_S", 0.5)
    with running(create_app(Quick)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            with pytest.raises((ConnectionError, AssertionError)):
                assert raw.recv(1) != b""


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: ",
        (
            b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\nX-Trailer: "
        ),
    ],
    ids=["header", "trailer"],
)
def test_a_header_without_end_is_not_read_on(begun: bytes) -> None:
    with running(create_app(Quick)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
            raw.sendall(begun)
            with pytest.raises(ConnectionError):
                raw.sendall(b"x" * 25_000_000)
        assert httpx.get(server.url + "/health", timeout=PATIENCE_S).status_code == 200


def test_a_header_of_usual_size_and_requests_ahead_of_their_answers_are_served() -> None:
    with running(create_app(Quick)) as server:
        assert httpx.get(server.url + "/health", headers={"Cookie": "x" * 60_000}).status_code == 200
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)
            answers = b""
            while answers.count(b"HTTP/1.1 200 OK") < 200:
                more = raw.recv(65536)
                assert more, "the connection was closed"
                answers += more


def test_requests_ahead_of_their_answers_hold_little(
    own_process: tuple[str, subprocess.Popen[str]],
) -> None:
    url, process = own_process
    host, port = url.removeprefix("http://").split(":")
    before = resident_mb(process.pid)
    requests = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2000
    with ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(8)]
        for peer in peers:
            peer.setblocking(False)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for peer in peers:
                with suppress(OSError):
                    peer.send(requests)
            time.sleep(0.01)
        assert resident_mb(process.pid) - before < 60, "8 peers that send requests and read nothing"


def test_a_slow_request_on_a_kept_connection_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envtorch.server.transport.http_connection.HEADER_TIMEOUT_S", 0.5)
    Obedient.gate.clear()
    with (
        running(create_app(Obedient)) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client,
    ):
        client.post("/reset")
        timer = threading.Timer(3.0, Obedient.gate.set)
        timer.start()
        assert client.post("/step", json={"action": {"do": "wait"}}).status_code == 200
        timer.join()


class TestSizes:
    def test_a_message_above_the_limit_is_told_the_limit_and_the_session_goes_on(
        self, server: Running
    ) -> None:
        with server.socket() as raw:
            raw.send('{"type":"reset","data":{}}')
            raw.recv(timeout=PATIENCE_S)
            message = json.dumps({"type": "step", "data": {"do": "x" * SMALL}})
            raw.send(message)
            error = json.loads(raw.recv(timeout=PATIENCE_S))
            assert error["type"] == "error"
            assert f"{len(message):,}" in error["data"]["message"]
            assert f"{SMALL:,}" in error["data"]["message"]
            raw.send('{"type":"step","data":{"do":"go on"}}')
            assert json.loads(raw.recv(timeout=PATIENCE_S))["data"]["observation"]["said"] == "go on"

    def test_on_the_extended_wire_the_error_has_its_requests_id(self, server: Running) -> None:
        url = server.url.replace("http", "ws") + "/ws"
        with connect(url, subprotocols=[EXTENDED], ping_interval=None) as raw:
            raw.send(request(1, "session"))
            assert json.loads(raw.recv(timeout=PATIENCE_S))["data"]["max_message_bytes"] == SMALL
            raw.send(request(2, "reset"))
            raw.recv(timeout=PATIENCE_S)
            raw.send(request(3, "step", data={"do": "x" * SMALL}))
            error = json.loads(raw.recv(timeout=PATIENCE_S))
            assert (error["type"], error["id"]) == ("error", 3)
            assert error["data"]["code"] == "MESSAGE_TOO_LARGE"
            raw.send(request(4, "step", data={"do": "go on"}))
            assert json.loads(raw.recv(timeout=PATIENCE_S))["data"]["observation"]["said"] == "go on"

    def test_a_frame_far_above_the_limit_ends_the_socket_with_a_reason(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ENVTORCH_MAX_MESSAGE_BYTES", str(SMALL))
            app = create_app(Quick)
        with running(app) as server, server.socket() as raw:
            raw.send("x" * SMALL * 5)
            with pytest.raises(ConnectionClosed) as caught:
                raw.recv(timeout=PATIENCE_S)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009
            assert str(SMALL * 5) in caught.value.rcvd.reason

    def test_a_body_above_the_limit_is_413_and_says_so(self, server: Running) -> None:
        answer = httpx.post(server.url + "/step", json={"action": {"do": "x" * SMALL}})
        assert answer.status_code == 413
        assert str(SMALL) in answer.json()["detail"]
        assert str(len(answer.request.content)) in answer.json()["detail"]

    def test_a_body_of_unknown_size_is_read_up_to_the_limit(self, server: Running) -> None:
        chunks = (b" " * 1024 for _ in range(80))
        answer = httpx.post(server.url + "/step", content=chunks)
        assert answer.status_code == 413
