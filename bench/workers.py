"""What a second worker brings, and what it costs to reach a session through the wrong one.

`python bench/workers.py`: steps per second of an environment that computes, with one worker and with two, in
alternation; then the round trip of a step that does nothing, near and far, on the extended wire.
"""

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.server.workers.app import Tell, TellerEnv
from tests.server.workers.support import WorkersServer, step, workers_server

SESSIONS = 16
SECONDS = 2.0
ROUNDS = 5
BURN_S = 0.005


class Rate(NamedTuple):
    steps_per_second: float
    cores: float
    """How much of the machine's processors the workers had: others may want some."""

    def __str__(self) -> str:
        per_core = self.steps_per_second / self.cores
        return f"{self.steps_per_second:6.0f} steps/s on {self.cores:.2f} cores, {per_core:.0f} a core"


def cpu_seconds(server: WorkersServer) -> float:
    ticks = 0
    for process in server.processes():
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(server: WorkersServer) -> Rate:
    envs = [TellerEnv.aio(server.url, connect_timeout_s=60) for _ in range(SESSIONS)]
    for env in envs:
        await env.connect()
        await env.reset()
    done, deadline = 0, time.perf_counter() + SECONDS

    async def play(env: object) -> None:
        nonlocal done
        while time.perf_counter() < deadline:
            await env.step(Tell(burn_s=BURN_S))  # type: ignore[attr-defined]
            done += 1

    began, used = time.perf_counter(), cpu_seconds(server)
    await asyncio.gather(*(play(env) for env in envs))
    seconds, used = time.perf_counter() - began, cpu_seconds(server) - used
    await asyncio.gather(*(env.close() for env in envs))
    return Rate(done / seconds, used / seconds)


def more_cores() -> None:
    options = {"environment": "tests.server.workers.app:BlockingTeller", "capacity": SESSIONS}
    with workers_server(workers=1, **options) as one, workers_server(workers=2, **options) as two:
        found: dict[int, list[Rate]] = {1: [], 2: []}
        for _ in range(ROUNDS):
            for workers, server in ((1, one), (2, two)):
                found[workers].append(asyncio.run(measure(server)))
    one_rate, two_rate = (sorted(rates)[len(rates) // 2] for rates in found.values())
    ratio = two_rate.steps_per_second / one_rate.steps_per_second
    print(f"{SESSIONS} sessions, {BURN_S * 1000:g} ms of CPU per step; median of {ROUNDS} rounds")
    print(f"  1 worker   {one_rate}")
    print(f"  2 workers  {two_rate}   {ratio:.2f}x")


def round_trips(server: WorkersServer, worker: int, count: int = 3000) -> float:
    with server.wire(0) as home:
        token = home.open()["token"]
        with server.wire(worker) as wire:
            wire.ask(type="attach", id=1, data={"token": token})
            took = []
            for number in range(2, count + 2):
                began = time.perf_counter()
                wire.ask(**step(number), ack=number - 1)
                took.append(time.perf_counter() - began)
            wire.close()
    return statistics.median(took) * 1e6


def passing_on() -> None:
    with workers_server() as server:
        near, far = ([round_trips(server, worker) for _ in range(ROUNDS)] for worker in (0, 1))
    print(f"round trip of a step, p50: near {min(near):.0f} us, through the other worker {min(far):.0f} us")


if __name__ == "__main__":
    more_cores()
    passing_on()
