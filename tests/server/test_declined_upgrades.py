"""Requests that ask for another protocol: which are answered as plain HTTP, with their bodies."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import parse_headers
from io import BufferedReader

import pytest

from envtorch import create_app
from tests.server.environments import Obedient
from tests.support import PATIENCE_S, Running, running

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
HANDSHAKE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: {'A' * 22}==\r\n"
)
ASKING = {
    "h2c, as Java's client asks with every first request": H2C,
    "h2c, with another Connection header": "Connection: keep-alive\r\n" + H2C,
    "a list": "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n",
    "TLS": "Connection: upgrade\r\nUpgrade: TLS/1.0\r\n",
    "nothing": "Connection: Upgrade\r\nUpgrade: \r\n",
    "twice": "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
    "a WebSocket, by POST": HANDSHAKE,
}
BODY = b'{"seed": 7}'


class RawConnection:
    """A connection on which requests are written out, and answers read one by one."""

    def __init__(self, raw: socket.socket, answers: BufferedReader) -> None:
        self._raw = raw
        self._answers = answers

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self._raw.sendall(packet)
            time.sleep(0.05 if len(packets) > 1 else 0)  # or the next one may come in the same packet

    def answer(self) -> tuple[int, bytes]:
        status = int(self._answers.readline().split()[1])
        length = int(parse_headers(self._answers)["Content-Length"] or 0)
        return status, self._answers.read(length)


@contextmanager
def connected(url: str) -> Iterator[RawConnection]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with raw.makefile("rb") as answers:
            yield RawConnection(raw, answers)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=200)) as running_server:
        yield running_server


def head(first: str, *headers: str, length: int | None = None) -> bytes:
    sized = "" if length is None else f"Content-Length: {length}\r\n"
    return f"{first} HTTP/1.1\r\nHost: 127.0.0.1\r\n{sized}{''.join(headers)}\r\n".encode()


def said(answer: tuple[int, bytes]) -> tuple[int, str]:
    status, body = answer
    return status, json.loads(body)["observation"]["said"]


def require_in_step(connection: RawConnection) -> None:
    """The next answer is the next request's: nothing of the last one was taken for a request."""
    connection.send(head("GET /metadata"))
    status, body = connection.answer()
    assert status == 200
    assert "name" in json.loads(body)


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "in packets"])
@pytest.mark.parametrize("asking", list(ASKING))
def test_the_body_of_a_request_whose_upgrade_is_declined_is_read(
    asking: str, is_split: bool, server: Running
) -> None:
    begin = head("POST /reset", ASKING[asking], length=len(BODY))
    with connected(server.url) as connection:
        for _ in range(2):  # the connection goes on
            connection.send(*([begin, BODY[:5], BODY[5:]] if is_split else [begin + BODY]))
            assert said(connection.answer()) == (200, "seed 7")
        require_in_step(connection)


def test_a_body_in_chunks_is_read_too(server: Running) -> None:
    begin = head("POST /reset", H2C, "Transfer-Encoding: chunked\r\n")
    with connected(server.url) as connection:
        connection.send(begin, b"%x\r\n%b\r\n" % (len(BODY), BODY), b"0\r\n\r\n")
        assert said(connection.answer()) == (200, "seed 7")
        require_in_step(connection)


def test_a_body_that_looks_like_a_request_is_no_request(server: Running) -> None:
    inner = head("GET /health")
    with connected(server.url) as connection:
        connection.send(head("POST /reset", H2C, length=len(inner)), inner)
        assert connection.answer()[0] == 422
        require_in_step(connection)


def test_requests_sent_ahead_of_answers_are_answered_in_order(server: Running) -> None:
    bodies = [b'{"seed": %d}' % seed for seed in range(50)]
    with connected(server.url) as connection:
        connection.send(b"".join(head("POST /reset", H2C, length=len(body)) + body for body in bodies))
        answers = [said(connection.answer()) for _ in bodies]
    assert answers == [(200, f"seed {seed}") for seed in range(50)]


@pytest.mark.parametrize("body", ["Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_handshake_with_a_body_opens_no_socket(body: str, server: Running) -> None:
    with connected(server.url) as connection:
        connection.send(
            head("GET /ws", HANDSHAKE, body), b"4\r\nping\r\n0\r\n\r\n" if "T" in body else b"ping"
        )
        assert connection.answer()[0] == 404
        require_in_step(connection)


def test_a_handshake_that_says_it_has_no_body_opens_a_socket(server: Running) -> None:
    with connected(server.url) as connection:
        connection.send(head("GET /ws", HANDSHAKE, length=0))
        assert connection.answer()[0] == 101


def test_who_takes_the_server_for_a_proxy_is_refused_and_disconnected(server: Running) -> None:
    with connected(server.url) as connection:
        connection.send(b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + head("GET /health"))
        assert connection.answer()[0] == 400
        with pytest.raises((IndexError, OSError)):  # the end, or a reset connection
            connection.answer()


@pytest.mark.parametrize(
    "last",
    [
        head("GET /ws", HANDSHAKE),
        b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
    ids=["a handshake", "CONNECT", "nonsense"],
)
def test_what_ends_a_connection_comes_after_the_answers_that_are_due(last: bytes, server: Running) -> None:
    due = [head("POST /reset", length=len(BODY)) + BODY, head("GET /metadata"), head("GET /health")]
    with connected(server.url) as connection:
        connection.send(b"".join([*due, last, head("GET /health")]))
        assert said(connection.answer()) == (200, "seed 7")
        assert "name" in json.loads(connection.answer()[1])
        assert connection.answer() == (200, b'{"status":"healthy"}')
        with pytest.raises((IndexError, OSError)):  # the end, or a reset connection
            connection.answer()
