"""A port on this machine whose connections come out somewhere that has no address here."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from envtorch.providers.child import listen

__all__ = ["Stream", "Tunnel"]

CHUNK = 64 * 1024


class Stream(Protocol):
    """The far end of one connection. `receive` and `send` are called from two threads."""

    def receive(self) -> bytes:
        """What came, at least one byte; nothing at the end."""
        ...

    def send(self, data: bytes) -> None: ...

    def end(self) -> None:
        """No more will be sent."""
        ...

    def close(self) -> None: ...


class Tunnel:
    """Accepts connections on loopback and relays each through a stream of its own.

    A stream that cannot be opened closes the connection: to the caller, the server is not there (yet).
    """

    def __init__(self, open_stream: Callable[[], Stream], *, port: int | None = None) -> None:
        self._open_stream = open_stream
        self._listener = listen("127.0.0.1", port)
        self._guard = threading.Lock()
        self._live: set[socket.socket] = set()
        self._closed = False
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="envtorch-tunnel", daemon=True).start()

    def close(self) -> None:
        """Refuse new connections and end those that are open."""
        with self._guard:
            self._closed = True
            live = list(self._live)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for connection in live:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._guard:
                if self._closed:
                    connection.close()
                    return
                self._live.add(connection)
            threading.Thread(
                target=self._relay, args=(connection,), name="envtorch-tunnel", daemon=True
            ).start()

    def _relay(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    stream = self._open_stream()
                except Exception:  # the far end is foreign: whatever it raised, nobody is there
                    return
                try:
                    back = threading.Thread(target=_pour_back, args=(stream, connection), daemon=True)
                    back.start()
                    with suppress(OSError):
                        while data := connection.recv(CHUNK):
                            stream.send(data)
                        stream.end()
                        back.join()
                finally:
                    stream.close()
        finally:
            with self._guard:
                self._live.discard(connection)


def _pour_back(stream: Stream, connection: socket.socket) -> None:
    with suppress(OSError, ValueError):  # the other direction may have closed the stream meanwhile
        while data := stream.receive():
            connection.sendall(data)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
