"""Whole episodes on OpenEnv's wire, so many at once, by one client for every server."""

import asyncio
import json
import time
from typing import Any

from websockets.asyncio.client import connect

from bench.clients.timing import asked, tell
from bench.stats import percentile

RESET = json.dumps({"type": "reset", "data": {}})
CLOSE = json.dumps({"type": "close"})


async def episode(url: str, steps: list[str]) -> None:
    async with connect(url, ping_interval=None, compression=None) as socket:
        for frame in (RESET, *steps):
            await socket.send(frame)
            answer = json.loads(await socket.recv())
            if answer.get("type") != "observation":
                raise RuntimeError(f"{frame} was answered {answer}")
        await socket.send(CLOSE)


async def main() -> None:
    job: dict[str, Any] = asked()
    url = f"ws://127.0.0.1:{job['port']}/ws"
    steps = [json.dumps({"type": "step", "data": action}) for action in job["actions"]]
    times: list[float] = []
    ends = time.perf_counter() + job["seconds"]

    async def play() -> None:
        while (began := time.perf_counter()) < ends:
            await episode(url, steps)
            times.append(time.perf_counter() - began)

    await episode(url, steps)  # imports, zygotes and caches are there before the clock runs
    began = time.perf_counter()
    await asyncio.gather(*(play() for _ in range(job["at_once"])))
    seconds = time.perf_counter() - began
    tell(
        {
            "episodes_per_s": len(times) / seconds,
            "p50_ms": percentile(times, 0.5) * 1e3,
            "p99_ms": percentile(times, 0.99) * 1e3,
        }
    )


if __name__ == "__main__":
    asyncio.run(main())
