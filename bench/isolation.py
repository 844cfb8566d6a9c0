"""Steps per second of a CPU-bound environment: on threads of one process, and in processes of their own.

    python bench/isolation.py [--sessions 4] [--seconds 5] [--work 200000]

The server runs in a process of its own; both variants are measured in one run, in turn, three times each.
Beside the steps per second stands what they were made of: the CPU time of one step, and how many cores the
server and its processes were given. On a machine that others use too, the cores are what is missing.
"""

import argparse
import asyncio
import contextlib
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
from typing import Any

import httpx

from envtorch import Action, EnvClient, Environment, Observation, State

ROUNDS = 3


class Turn(Action):
    work: int = 200_000


class Sum(Observation):
    total: int = 0


class Grinder(Environment[Turn, Sum, State]):
    """Counts in pure Python: holds the interpreter's lock all the while."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Sum:
        return Sum()

    def step(self, action: Turn) -> Sum:
        total = 0
        for number in range(action.work):
            total += number & 3
        return Sum(total=total)

    @property
    def state(self) -> State:
        return State()


class Grind(EnvClient[Turn, Sum, State]): ...


def serve(descriptor: int, isolation: str) -> None:
    from isolation import Grinder as Named  # by its module's name: processes load it by that

    from envtorch.server import create_app
    from envtorch.server import serve as run

    app = create_app(Named, max_concurrent_envs=64, isolation=isolation or None)
    run(app, listener=socket.socket(fileno=descriptor))


@dataclass(frozen=True, slots=True)
class Rate:
    """What one round came to."""

    steps_per_s: float
    cpu_ms_per_step: float
    cores: float


def cpu_of(root: int) -> float:
    """CPU seconds so far of a process and everything below it, in processes that live and have ended."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = place.read_text().rpartition(")")[2].split()
            process = int(place.parent.name)
            parents[process] = int(fields[1])
            seconds[process] = sum(map(int, fields[11:15])) / tick
    total = 0.0
    for process in seconds:
        above: int | None = process
        while above is not None and above != root:
            above = parents.get(above)
        total += seconds[process] if above == root else 0.0
    return total


@contextmanager
def server(isolation: str) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        command = [sys.executable, __file__, "--serve", str(listener.fileno()), isolation]
        folder = str(Path(__file__).parent)
        process = subprocess.Popen(
            command, pass_fds=[listener.fileno()], env={**os.environ, "PYTHONPATH": folder}
        )
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        while httpx.get(f"{url}/health", timeout=60).status_code != 200:
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


async def grind(url: str, process: int, sessions: int, seconds: float, work: int) -> Rate:
    """What that many sessions do together."""
    clients: list[Any] = [Grind.aio(url) for _ in range(sessions)]
    for client in clients:
        await client.reset()
        await client.step(Turn(work=work))
    end = time.monotonic() + seconds
    counts = [0] * sessions

    async def play(index: int) -> None:
        while time.monotonic() < end:
            await clients[index].step(Turn(work=work))
            counts[index] += 1

    begin, spent = time.monotonic(), cpu_of(process)
    await asyncio.gather(*(play(index) for index in range(sessions)))
    took, spent = time.monotonic() - begin, cpu_of(process) - spent
    for client in clients:
        await client.close()
    return Rate(sum(counts) / took, spent / sum(counts) * 1000, spent / took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--work", type=int, default=200_000)
    options = parser.parse_args()
    if options.serve:
        serve(int(options.serve[0]), options.serve[1])
        return
    rates: dict[str, list[Rate]] = {"threads": [], "processes": []}
    with server("") as threads, server("process") as processes:
        for _ in range(ROUNDS):
            for name, (url, process) in (("threads", threads), ("processes", processes)):
                rate = asyncio.run(grind(url, process, options.sessions, options.seconds, options.work))
                rates[name].append(rate)
    show(rates, options.sessions)


def show(rates: dict[str, list[Rate]], sessions: int) -> None:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"{sessions} sessions, {cores} cores, load {load:.1f}, median of {ROUNDS} rounds")
    for name, found in rates.items():
        steps = statistics.median(rate.steps_per_s for rate in found)
        cost = statistics.median(rate.cpu_ms_per_step for rate in found)
        given = statistics.median(rate.cores for rate in found)
        print(f"  {name:10} {steps:8.0f} steps/s   {cost:6.2f} ms of CPU a step   {given:.2f} cores obtained")
    pairs = list(zip(rates["threads"], rates["processes"], strict=True))
    ratios = [p.steps_per_s / t.steps_per_s for t, p in pairs]
    print(f"  processes / threads: {statistics.median(ratios):.2f}   {[round(r, 2) for r in ratios]}")
    costs = statistics.median(p.cpu_ms_per_step / t.cpu_ms_per_step for t, p in pairs)
    print(f"  CPU of a step, processes / threads: {costs:.2f}")


if __name__ == "__main__":
    main()
