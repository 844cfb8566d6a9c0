"""Steps per second and server CPU per step, ours beside OpenEnv's, in one run. Run: make bench

One echo environment, written against each framework; the same load generator, the same frames of OpenEnv's
wire, servers taken in turn. Server CPU is read from /proc, which a busy machine moves least. Ratios are what
counts.
"""

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import connect

SERVER = """
import socket, sys
from {types} import Action, Observation, State
from {interfaces} import Environment
from {server} import create_app

class Say(Action):
    message: str

class Said(Observation):
    message: str = ""

class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    BLOCKING = {blocking}
    def __init__(self): super().__init__(); self._state = State()
    def reset(self, seed=None, episode_id=None, **kwargs): self._state = State(); return Said(message="ready")
    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        return Said(message=action.message, reward=1.0)
    @property
    def state(self): return self._state

app = create_app(Echo, Say, Said, max_concurrent_envs=2000)
import uvicorn
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""


@dataclass(frozen=True)
class Contender:
    """One server to measure: which Python runs it, and which names it imports."""

    name: str
    python: str
    names: dict[str, str]


def contenders(openenv: Path) -> list[Contender]:
    ours = {"types": "envtorch", "interfaces": "envtorch", "server": "envtorch.server"}
    theirs = {
        "types": "openenv.core.env_server.types",
        "interfaces": "openenv.core.env_server.interfaces",
        "server": "openenv.core.env_server.http_server",
    }
    found = [
        Contender("EnvTorch, thread", sys.executable, {**ours, "blocking": "True"}),
        Contender("EnvTorch, BLOCKING = False", sys.executable, {**ours, "blocking": "False"}),
    ]
    if openenv.exists():
        found.append(Contender("OpenEnv 0.10.0", str(openenv), {**theirs, "blocking": "True"}))
    return found


@contextmanager
def served(contender: Contender) -> Iterator[tuple[int, int]]:
    """The contender's server: its port and its process id."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        fd = listener.fileno()
        command = [contender.python, "-c", SERVER.format(**contender.names), str(fd)]
        process = subprocess.Popen(command, pass_fds=[fd])
        port = listener.getsockname()[1]
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    steps_per_s: float
    cpu_us_per_step: float
    p50_ms: float


async def measure(port: int, pid: int, sessions: int, seconds: float) -> Measured:
    """Every session steps as fast as it is answered, for so many seconds."""
    sockets = [
        await connect(f"ws://127.0.0.1:{port}/ws", compression=None, open_timeout=60, ping_interval=None)
        for _ in range(sessions)
    ]
    latencies: list[float] = []

    async def play(socket_: object, until: float) -> int:
        steps = 0
        while time.perf_counter() < until:
            began = time.perf_counter()
            await socket_.send('{"type":"step","data":{"message":"hello"}}')  # type: ignore[attr-defined]
            await socket_.recv()  # type: ignore[attr-defined]
            latencies.append(time.perf_counter() - began)
            steps += 1
        return steps

    for one in sockets:
        await one.send('{"type":"reset"}')
        await one.recv()
    cpu, began = cpu_seconds(pid), time.perf_counter()
    counts = await asyncio.gather(*(play(one, began + seconds) for one in sockets))
    elapsed, spent = time.perf_counter() - began, cpu_seconds(pid) - cpu
    for one in sockets:
        one.transport.abort()
    steps = sum(counts)
    return Measured(steps / elapsed, spent / steps * 1e6, statistics.median(latencies) * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openenv-python", type=Path, default=Path(".venvs/openenv/bin/python"))
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    console = Console(width=110)
    everybody = contenders(args.openenv_python)
    results: dict[tuple[str, int], list[Measured]] = {}
    for round_number in range(args.rounds):
        for contender in everybody:
            with served(contender) as (port, pid):
                for sessions in args.sessions:
                    console.print(
                        f"round {round_number + 1}: {contender.name}, {sessions} sessions", style="dim"
                    )
                    got = asyncio.run(measure(port, pid, sessions, args.seconds))
                    results.setdefault((contender.name, sessions), []).append(got)
    console.print(table_of(results, everybody, args.sessions))


def table_of(
    results: dict[tuple[str, int], list[Measured]], everybody: list[Contender], sizes: list[int]
) -> Table:
    """Medians over the rounds; the ratio is to the last contender, which is OpenEnv where it is there."""
    table = Table(title="Echo over /ws on uvicorn, OpenEnv's wire, medians")
    for heading in (
        "sessions",
        "server",
        "steps/s",
        "server CPU, us/step",
        "p50, ms",
        "steps/s ratio",
        "CPU ratio",
    ):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    for sessions in sizes:
        rows = {c.name: results[c.name, sessions] for c in everybody}
        rate = {name: statistics.median(m.steps_per_s for m in rounds) for name, rounds in rows.items()}
        cost = {name: statistics.median(m.cpu_us_per_step for m in rounds) for name, rounds in rows.items()}
        last = everybody[-1].name
        for name, rounds in rows.items():
            p50 = statistics.median(m.p50_ms for m in rounds)
            table.add_row(
                str(sessions), name, f"{rate[name]:,.0f}", f"{cost[name]:.0f}", f"{p50:.2f}",
                f"{rate[name] / rate[last]:.1f}x", f"1/{cost[last] / cost[name]:.1f}",
            )  # fmt: skip
        table.add_section()
    return table


if __name__ == "__main__":
    main()
