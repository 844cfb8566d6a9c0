"""A server of several workers, as a process; each worker can be reached on purpose, by its private socket."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect, unix_connect
from websockets.typing import Subprotocol

from envtorch.protocol.formats import JSON, MSGPACK, Format
from tests import patient
from tests.server.test_extended import Wire
from tests.support import PATIENCE_S

SERVER = """
import os, socket, sys
from envtorch.server.workers import serve_workers

serve_workers(
    sys.argv[2],
    loader="tests.server.workers.app:load",
    workers=int(sys.argv[3]),
    listener=socket.socket(fileno=int(sys.argv[1])),
    drain_s=float(sys.argv[4]),
    isolation=sys.argv[5] or None,
    on_ready=lambda count: print(count, flush=True),
)
"""
ROOT = Path(__file__).parents[3]


class WorkersServer:
    """One server, its processes and its doors."""

    def __init__(
        self,
        place: str,
        *,
        workers: int = 2,
        drain_s: float = 20.0,
        isolation: str = "",
        environ: dict[str, str] | None = None,
        **app: Any,
    ) -> None:
        if "build" not in app:
            app = {"environment": "tests.server.workers.app:Teller", "capacity": 16, **app}
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            fd = listener.fileno()
            arguments = [str(fd), json.dumps(app), str(workers), str(drain_s), isolation]
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, *arguments],
                pass_fds=[fd],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": place, **(environ or {})},
                stdout=subprocess.PIPE,
                text=True,
            )
        self._place = place
        assert self.process.stdout is not None
        self.workers = int(self.process.stdout.readline() or 0)

    def address(self, worker: int) -> str:
        (directory,) = Path(self._place).glob("envtorch-workers-*")
        return str(directory / str(worker))

    def http(self, worker: int, **options: Any) -> httpx.Client:
        """A client whose every request reaches this worker."""
        transport = httpx.HTTPTransport(uds=self.address(worker))
        return patient.Client(transport=transport, base_url="http://worker", timeout=PATIENCE_S, **options)

    def process_of(self, worker: int) -> int:
        with self.http(worker) as http:
            return int(http.get("/process").text)

    def processes(self) -> list[int]:
        """The workers' process ids."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(process) for process in listed.split()]

    @contextmanager
    def socket(self, path: str = "/ws") -> Iterator[ClientConnection]:
        """A WebSocket through the front door, to whichever worker it is handed."""
        url = self.url.replace("http://", "ws://") + path
        with connect(url, max_size=None, close_timeout=5, ping_interval=None) as raw:
            yield raw

    @contextmanager
    def raw(self, worker: int, path: str = "/ws", **options: Any) -> Iterator[ClientConnection]:
        with unix_connect(
            self.address(worker),
            uri=f"ws://worker{path}",
            max_size=None,
            close_timeout=5,
            ping_interval=None,
            **options,
        ) as connection:
            yield connection

    @contextmanager
    def wire(self, worker: int, format: Format = JSON) -> Iterator[Wire]:
        """A socket of the extended wire that this worker has accepted."""
        name = Subprotocol("envtorch.v1" + ("+msgpack" if format is MSGPACK else ""))
        with self.raw(worker, subprotocols=[name]) as connection:
            yield Wire(connection, format)

    def sessions(self) -> int:
        """How many there are, in all workers together."""
        lines = self.metrics().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("envtorch_sessions{"))

    def metrics(self) -> str:
        return patient.get(self.url + "/metrics").text

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def workers_server(**options: Any) -> Iterator[WorkersServer]:
    with tempfile.TemporaryDirectory(prefix="w") as place:
        server = WorkersServer(place, **options)
        try:
            yield server
        finally:
            server.stop()


def step(id: int, **action: Any) -> dict[str, Any]:
    return {"type": "step", "id": id, "data": action}
