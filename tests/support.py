"""A real server for the tests: uvicorn on a thread, on a loopback port it was given already bound."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from websockets.sync.client import ClientConnection, connect

from envtorch.server.serve import uvicorn_config
from envtorch.server.sessions.registry import Sessions

PATIENCE_S = 120.0
"""Upper bound on a wait for something that must happen. A test that passes never waits this long: it is far
beyond what a loaded machine takes, and below the timeout of a whole test (pyproject.toml)."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is up."""

    url: str
    app: FastAPI

    @property
    def sessions(self) -> Sessions:
        sessions: Sessions = self.app.state.env_server.sessions
        return sessions

    @contextmanager
    def socket(self, path: str = "/ws") -> Iterator[ClientConnection]:
        """A raw WebSocket, for frames that no client of ours would send."""
        url = self.url.replace("http://", "ws://") + path
        with connect(url, max_size=None, open_timeout=PATIENCE_S, close_timeout=5, ping_interval=None) as raw:
            yield raw


@contextmanager
def running(app: FastAPI, **options: Any) -> Iterator[Running]:
    """Serve `app` for the length of the block."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn_config(app, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Running(f"http://127.0.0.1:{port}", app)
        finally:
            server.should_exit = True
            thread.join(timeout=PATIENCE_S)
            assert not thread.is_alive(), "the server did not stop"


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds: for effects that another process or thread brings about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)


def cpu_s(call: Callable[[], Any], times: int = 3) -> float:
    """The least CPU time that a call took of this thread. How it grows says more than how long it is."""

    def once() -> float:
        began = time.thread_time()
        call()
        return time.thread_time() - began

    return min(once() for _ in range(times))


def cut(client: Any) -> None:
    """Break the connection of a blocking client or vector, as a network does: nobody is told."""
    link = client._link if hasattr(client, "_link") else client
    link._shell._connection._socket.shutdown(socket.SHUT_RDWR)
