"""One connection into a container that has no network: a small relay, run inside by the engine."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from docker.utils.socket import frames_iter

__all__ = ["ExecStream"]

RELAY = """
import os, socket, threading
server = socket.create_connection(("127.0.0.1", {port}))
def pour():
    while data := os.read(0, 65536):
        server.sendall(data)
    server.shutdown(socket.SHUT_WR)
threading.Thread(target=pour, daemon=True).start()
while data := server.recv(65536):
    while data:
        data = data[os.write(1, data):]
os._exit(0)
"""

STDOUT = 1


class ExecStream:
    """The two ends of a relay's standard input and output."""

    def __init__(self, client: Any, container_id: str, port: int) -> None:
        made = client.api.exec_create(
            container_id, ["python3", "-c", RELAY.format(port=port)], stdin=True, stderr=False
        )
        # The engine hands over the connection itself; what docker-py wraps it in depends on the transport.
        self._wrapped = client.api.exec_start(made["Id"], socket=True)
        self._socket: socket.socket = getattr(self._wrapped, "_sock", self._wrapped)
        self._socket.settimeout(None)
        frames: Any = frames_iter(self._wrapped, tty=False)  # type: ignore[no-untyped-call]
        self._frames: Iterator[tuple[int, bytes]] = frames

    def receive(self) -> bytes:
        for kind, data in self._frames:
            if kind == STDOUT and data:
                return data
        return b""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wrapped.close()
        self._socket.close()
