"""Steps per second of a CPU-bound environment: on threads of one process, and in processes of their own.

    python bench/isolation.py [--sessions 4] [--seconds 5] [--work 200000]

The server runs in a process of its own; both variants are measured in one run, in turn, three times each.
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


@contextmanager
def server(isolation: str) -> Iterator[str]:
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
        yield url
    finally:
        process.terminate()
        process.wait()


async def grind(url: str, sessions: int, seconds: float, work: int) -> float:
    """Steps per second of that many sessions together."""
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

    begin = time.monotonic()
    await asyncio.gather(*(play(index) for index in range(sessions)))
    took = time.monotonic() - begin
    for client in clients:
        await client.close()
    return sum(counts) / took


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
    rates: dict[str, list[float]] = {"threads": [], "processes": []}
    with server("") as threads, server("process") as processes:
        for _ in range(ROUNDS):
            for name, url in (("threads", threads), ("processes", processes)):
                rate = asyncio.run(grind(url, options.sessions, options.seconds, options.work))
                rates[name].append(rate)
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"{options.sessions} sessions, {cores} cores, load {load:.1f}, median of {ROUNDS} rounds")
    for name, found in rates.items():
        print(f"  {name:10} {statistics.median(found):8.0f} steps/s   {[round(rate) for rate in found]}")
    ratios = [p / t for t, p in zip(rates["threads"], rates["processes"], strict=True)]
    print(f"  processes / threads: {statistics.median(ratios):.2f}   {[round(r, 2) for r in ratios]}")


if __name__ == "__main__":
    main()
