"""Ten thousand malformed frames at one live server: it answers or closes each, and lives."""

import json
import random
import socket as sockets
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app
from tests import patient
from tests.support import PATIENCE_S, Running, eventually, running

FRAMES = 10_000
RAW_CONNECTIONS = 60

WELL_FORMED = [
    b'{"type":"reset","data":{"seed":1}}',
    b'{"type":"step","data":{"message":"hello"}}',
    b'{"type":"state"}',
    b'{"type":"mcp","data":{"jsonrpc":"2.0","method":"tools/list","id":1}}',
]
PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"1e999",
    b"NaN",
    b"\\u0000",
    b"\\ud800",
    b'"type"',
    b"\xc3\xa9",
    b"-",
    b"data",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(EchoEnvironment, max_concurrent_envs=4)) as running_server:
        yield running_server


def malformed(dice: random.Random) -> bytes:
    """A frame that went wrong somewhere: cut, doubled, shuffled, spliced or made of pieces."""
    frame = bytearray(dice.choice(WELL_FORMED))
    match dice.randrange(6):
        case 0:
            del frame[dice.randrange(len(frame)) :]
        case 1:
            frame[dice.randrange(len(frame))] = dice.randrange(32, 127)
        case 2:
            at = dice.randrange(len(frame))
            frame[at:at] = dice.choice(PIECES) * dice.randrange(1, 5)
        case 3:
            frame = bytearray(b"".join(dice.choice(PIECES) for _ in range(dice.randrange(1, 30))))
        case 4:
            value: object = dice.choice(
                [None, 5, "x", [1], {"type": [1]}, {"type": "step", "data": 3}, {"data": {}}]
            )
            frame = bytearray(json.dumps(value).encode())
        case _:
            frame = bytearray(b"[" * dice.randrange(1, 3000))
    return bytes(frame)


def answer_to(socket: ClientConnection, frame: bytes, dice: random.Random) -> bool:
    """Send a frame as text or binary; say whether the server answered it (or else closed)."""
    try:
        socket.send(frame if dice.random() < 0.1 else frame.decode(errors="replace"))
        reply = json.loads(socket.recv(timeout=PATIENCE_S))
    except ConnectionClosed:
        return False
    assert reply["type"] in ("error", "observation", "state", "mcp")
    return True


def test_malformed_frames(server: Running) -> None:
    dice = random.Random(20261115)
    answered = closed = 0
    while answered + closed < FRAMES:
        with server.socket() as socket:
            while answered + closed < FRAMES:
                if answer_to(socket, malformed(dice), dice):
                    answered += 1
                else:
                    closed += 1
                    break
    print(f"{answered} frames answered, {closed} closed")
    assert answered > 0.99 * FRAMES, "a bad frame is answered; only a broken socket closes"
    eventually(lambda: server.sessions.active == 0, "no session is left")
    with server.socket() as socket:
        assert answer_to(socket, WELL_FORMED[0], dice)


def test_bytes_that_are_no_websocket_at_all(server: Running) -> None:
    dice = random.Random(7)
    host, port = server.url.removeprefix("http://").split(":")
    upgrade = (
        f"GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    for _ in range(RAW_CONNECTIONS):
        with sockets.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
            raw.sendall(upgrade if dice.random() < 0.8 else upgrade[: dice.randrange(len(upgrade))])
            raw.sendall(dice.randbytes(dice.randrange(1, 2000)))
            raw.shutdown(sockets.SHUT_WR)
            while raw.recv(65536):
                pass
    eventually(lambda: server.sessions.active == 0, "no session is left")
    assert patient.get(server.url + "/health").status_code == 200
