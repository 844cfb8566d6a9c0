"""What all clients are timed by. Imports nothing but the standard library, and runs in either environment."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.proc import waited
from bench.stats import percentile

WARM_UP = 50


def asked() -> dict[str, Any]:
    """The one argument: `url`, `port`, `seconds`, `size`, ..."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def repeat(call: Callable[[], object], seconds: float, *, warm_up: int = WARM_UP) -> dict[str, float]:
    """Call it again and again: median and 99th percentile in microseconds, and CPU time of this process."""
    for _ in range(warm_up):
        call()
    times: list[float] = []
    cpu, waiting, until = time.process_time(), waited(), time.perf_counter() + seconds
    before = time.perf_counter()
    while before < until:
        call()
        after = time.perf_counter()
        times.append(after - before)
        before = after
    return {
        "calls": len(times),
        "p50_us": percentile(times, 0.5) * 1e6,
        "p99_us": percentile(times, 0.99) * 1e6,
        "waited": (waited() - waiting) / seconds,
        "client_cpu_us": (time.process_time() - cpu) / len(times) * 1e6,
    }


def tell(values: dict[str, float]) -> None:
    print(json.dumps(values))
