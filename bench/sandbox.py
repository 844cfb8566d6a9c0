"""What a sandbox costs, beside what else could run the code, in one run.

    python bench/sandbox.py [--live 1000] [--rounds 100]

Compared with `python -c pass`, with bubblewrap and with smolagents' interpreter where they are installed.
Times are milliseconds of wall clock on this machine, now; a busy machine shows in the 99th percentile.
"""

import argparse
import contextlib
import importlib.util
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from envtorch.sandbox import Policy, Pool, Sandbox

MEGABYTE = 1024 * 1024
LOOP = "total = 0\nfor i in range(2_000_000): total += i * i % 7\n"


def timed_each(action: Callable[[], object], rounds: int) -> list[float]:
    return [timed(action) for _ in range(rounds)]


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def spread(times: list[float]) -> str:
    ordered = sorted(times)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered):8.2f} ms   p99 {last:8.2f} ms"


def show(what: str, value: str) -> None:
    print(f"{what:58} {value}", flush=True)


def bench_start(policy: Policy, rounds: int) -> None:
    def one() -> None:
        with Sandbox(policy) as sandbox:
            assert sandbox.run("1").value == "1"
            ended.append(time.perf_counter())

    print("\nstart to first result")
    times = []
    for _ in range(rounds):
        ended: list[float] = []
        began = time.perf_counter()
        one()
        times.append((ended[0] - began) * 1000)
    show("sandbox", spread(times))
    with Pool(policy, size=20) as pool:
        times = []
        for _ in range(rounds):
            time.sleep(0.05)  # a pool is for requests that come now and then: let it refill
            began = time.perf_counter()
            with pool.take() as sandbox:
                sandbox.run("1")
                times.append((time.perf_counter() - began) * 1000)
    show("sandbox out of a warm pool", spread(times))
    few = max(5, rounds // 5)
    plain = [sys.executable, "-c", "print(1)"]
    show(
        "python -c (no isolation)",
        spread(timed_each(lambda: subprocess.run(plain, capture_output=True), few)),
    )
    if shutil.which("bwrap"):
        jail = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", *plain]
        show(
            "bubblewrap + python -c",
            spread(timed_each(lambda: subprocess.run(jail, capture_output=True), few)),
        )
    else:
        show("bubblewrap + python -c", "bwrap is not installed")
    if importlib.util.find_spec("smolagents"):
        from envtorch.sandbox.smolagents_executor import SmolagentsExecutor

        show(
            "smolagents (in process, no isolation)",
            spread(timed_each(lambda: SmolagentsExecutor().run("1"), few)),
        )
    else:
        show("smolagents (in process, no isolation)", "smolagents is not installed")


def bench_step(policy: Policy, rounds: int) -> None:
    print("\nstep overhead: one run of `1`, and one exchange of a byte with another process")
    with Sandbox(policy) as sandbox:
        show("sandbox", spread(timed_each(lambda: sandbox.run("1"), rounds * 10)))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        sink, source = cat.stdin, cat.stdout
        show(
            "a pipe to `cat` and back",
            spread(timed_each(lambda: (sink.write(b"x"), source.read(1)), rounds * 10)),
        )
        sink.close()


def bench_memory(policy: Policy, live: int) -> None:
    print(f"\nmemory of {live} idle sandboxes, each of which has run one line")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    live = min(live, (hard - 200) // 4)
    before = available()
    sandboxes: list[Sandbox] = []
    try:
        took = timed(lambda: sandboxes.extend(Sandbox(policy) for _ in range(live)))
        for sandbox in sandboxes:
            sandbox.run("x = 1")
        sizes = [pss for sandbox in sandboxes if (pss := proportional_size(sandbox))]
        show("started", f"{live} in {took / 1000:.1f} s, {live / took * 1000:.0f} per second")
        if sizes:
            show(
                "proportional set size, init and interpreter",
                f"{statistics.mean(sizes) / MEGABYTE:.2f} MB each",
            )
        else:
            show("proportional set size", "cannot be read by this user")
        show(
            "less memory available on the machine", f"{(before - available()) / live / MEGABYTE:.2f} MB each"
        )
    finally:
        show("ended", f"in {timed(lambda: [sandbox.close() for sandbox in sandboxes]) / 1000:.1f} s")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def proportional_size(sandbox: Sandbox) -> int:
    init = sandbox._core.host_process()
    total = 0
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        for process in (init, *children):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def bench_fork(policy: Policy, rounds: int) -> None:
    print("\nfork of a live sandbox, by the size of its heap; then 100 forks at once")
    for size in (1, 32, 256):
        for kind, code in (
            ("Python objects", f"x = [{{'n': i, 's': str(i)}} for i in range({size} * 2900)]"),
            ("one array", f"x = bytearray({size} * 2**20)"),
        ):
            with Sandbox(policy) as sandbox:
                assert sandbox.run(code).ok
                times = []
                for _ in range(max(10, rounds // 3)):
                    made: list[Sandbox] = []
                    times.append(timed(lambda made=made, sandbox=sandbox: made.extend(sandbox.fork())))
                    made[0].close()
                show(f"{size} MB of heap, {kind}", spread(times))
    with Sandbox(policy) as sandbox:
        many: list[Sandbox] = []
        show("100 forks", f"{timed(lambda: many.extend(sandbox.fork(100))):8.0f} ms")
        for fork in many:
            fork.close()


def bench_loop(policy: Policy) -> None:
    print("\na pure Python loop of two million rounds")
    plain = min(timed(lambda: exec(LOOP, {})) for _ in range(5))
    show("this interpreter", f"{plain:8.0f} ms")
    with Sandbox(policy) as sandbox:
        inside = min(sandbox.run(LOOP).duration_s for _ in range(5)) * 1000
        show("sandbox", f"{inside:8.0f} ms   {inside / plain:.2f} times")
    if importlib.util.find_spec("smolagents"):
        from envtorch.sandbox.smolagents_executor import SmolagentsExecutor

        short = LOOP.replace("2_000_000", "20_000")
        slow = min(timed(lambda: SmolagentsExecutor().run(short)) for _ in range(3)) * 100
        show("smolagents (a hundredth of it, times 100)", f"{slow:8.0f} ms   {slow / plain:.0f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    policy = Policy(memory_bytes=1024 * MEGABYTE)
    with Sandbox(policy) as sandbox:
        report = sandbox.report()
    load = os.getloadavg()[0]
    machine = f"Python {platform.python_version()}, Linux {platform.release()}"
    print(f"{report.grade} grade, user {os.getuid()}, {machine}, load {load:.1f}")
    bench_start(policy, options.rounds)
    bench_step(policy, options.rounds)
    bench_loop(policy)
    if report.protects("fork"):
        bench_fork(policy, options.rounds)
    bench_memory(policy, options.live)


if __name__ == "__main__":
    main()
