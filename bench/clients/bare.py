"""A blocking socket that writes WebSocket frames by hand: the limit of what a blocking client can do."""

import socket

from bench.clients.timing import asked, repeat, tell

STEP = b'{"type":"step","data":{"message":"hello"}}'
RESET = b'{"type":"reset"}'


def connect(port: int) -> socket.socket:
    """A WebSocket on /ws, its handshake done."""
    found = socket.create_connection(("127.0.0.1", port))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.sendall(
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += found.recv(4096)
    if b" 101 " not in answer[:20]:
        raise RuntimeError(f"the handshake was answered {answer[:100]!r}")
    return found


def text_frame(payload: bytes) -> bytes:
    """A masked text frame whose mask is zero, so that the payload stays as it is."""
    if len(payload) > 125:
        raise ValueError("only small frames are written by hand")
    return bytes([0x81, 0x80 | len(payload)]) + bytes(4) + payload


def read_frame(connection: socket.socket) -> bytes:
    """The payload of the next frame."""
    head = connection.recv(65536)
    size, start = head[1] & 0x7F, 2
    if size == 126:
        size, start = int.from_bytes(head[2:4], "big"), 4
    elif size == 127:
        size, start = int.from_bytes(head[2:10], "big"), 10
    payload = bytearray(head[start:])
    while len(payload) < size:
        payload += connection.recv(1 << 20)
    return bytes(payload)


def main() -> None:
    job = asked()

    def open_one() -> socket.socket:
        opened = connect(job["port"])
        opened.sendall(text_frame(RESET))
        read_frame(opened)
        return opened

    if job["what"] == "open":
        tell(repeat(lambda: open_one().close(), job["seconds"], warm_up=5))
        return
    payload = (
        STEP if not job.get("size") else b'{"type":"step","data":{"message":"x","size":%d}}' % job["size"]
    )
    frame = text_frame(payload)
    with open_one() as connection:

        def step() -> None:
            connection.sendall(frame)
            read_frame(connection)

        tell(repeat(step, job["seconds"], warm_up=job.get("warm_up", 50)))


if __name__ == "__main__":
    main()
