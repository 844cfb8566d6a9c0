"""An environment that counts, so that a step lost or doubled shows; and its server, as a process."""

import asyncio
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

from envtorch import Action, ConcurrencyConfig, EnvClient, Environment, Observation, State, create_app
from tests import patient
from tests.complaints import complaints
from tests.support import PATIENCE_S


class Add(Action):
    n: int
    wait_s: float = 0.0


class Total(Observation):
    total: int = 0


class Counting(Environment[Add, Total, State]):
    """Adds numbers up. What it answers depends on every step before."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    async def reset(self, seed: int | None = None) -> Total:
        self._total = seed or 0
        self._state = State()
        return Total(total=self._total, reward=0.0)

    async def step(self, action: Add) -> Total:
        if action.wait_s:
            await asyncio.sleep(action.wait_s)
        self._state.step_count += 1
        self._total = self._total * 3 + action.n
        self._total %= 1_000_003
        return Total(total=self._total, reward=self._total % 7)

    @property
    def state(self) -> State:
        return self._state


class CountingEnv(EnvClient[Add, Total, State]): ...


def expected(seed: int, steps: int) -> list[int]:
    """The totals that an undisturbed episode shows."""
    totals = [seed]
    for n in range(steps):
        totals.append((totals[-1] * 3 + n) % 1_000_003)
    return totals


def application(grace_s: str) -> Any:
    config = ConcurrencyConfig(max_concurrent_envs=5000, reconnect_grace=float(grace_s))
    return create_app(Counting, concurrency_config=config)


LOADER = "tests.faults.counting:application"
SERVER = f"""
import socket, sys
from envtorch.env import load_object
from envtorch.server import serve
from envtorch.server.workers import serve_workers

listener, grace_s, drain_s = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], float(sys.argv[3])
if (workers := int(sys.argv[4])) > 1:
    serve_workers(grace_s, workers=workers, listener=listener, drain_s=drain_s, loader="{LOADER}")
else:
    serve(load_object("{LOADER}")(grace_s), listener=listener, drain_s=drain_s)
"""


class CountingServer:
    """A server process that can be stopped, continued and terminated."""

    def __init__(self, *, grace_s: float = 60.0, drain_s: float = 30.0, workers: int = 1) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            self.port: int = listener.getsockname()[1]
            fd = listener.fileno()
            command = [sys.executable, "-c", SERVER, str(fd), str(grace_s), str(drain_s), str(workers)]
            self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, it lives as long as the server
            self.process = subprocess.Popen(
                command, pass_fds=[fd], cwd=Path(__file__).parents[2], stderr=self._log
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def read_log(self) -> list[str]:
        """What a server that has ended has written."""
        with self._log:
            self._log.seek(0)
            return self._log.read().splitlines()

    def sessions(self) -> int:
        """How many sessions are live, whatever their phase."""
        lines = patient.get(self.url + "/metrics").text.splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("envtorch_sessions{"))

    def metric(self, name: str) -> float:
        lines = patient.get(self.url + "/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name.rstrip("}")))


@contextmanager
def counting_server(
    *, grace_s: float = 60.0, drain_s: float = 30.0, workers: int = 1
) -> Iterator[CountingServer]:
    """A server whose log has no complaints at its end."""
    server = CountingServer(grace_s=grace_s, drain_s=drain_s, workers=workers)
    try:
        patient.get(server.url + "/health").raise_for_status()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.terminate()
        server.process.wait(PATIENCE_S)
        log = server.read_log()
        print(*log, sep="\n")  # shown where the test fails
    assert complaints(log) == []
