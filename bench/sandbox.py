"""What a sandbox costs, beside what else could run the code, in one run.

    python bench/sandbox.py [--live 1000] [--rounds 100]

Beside it: a plain `python -c`, bubblewrap around it, and smolagents' interpreter, where they are installed.
Times are wall clock on this machine, now: what else runs there shows, in the 99th percentile first. Root can
measure a busy machine as if it were quiet, with `chrt --fifo 10` in front of the command.
"""

import argparse
import contextlib
import gc
import importlib.util
import itertools
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envtorch.sandbox import Policy, Pool, Sandbox

MEGABYTE = 1024 * 1024
LOOP = "total = 0\nfor i in range(2_000_000): total += i * i % 7\n"
ALONE = [sys.executable, "-c"]
JAIL = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", *ALONE]
PAUSE_S = 0.03
"""Between two starts or forks: requests that come now and then, not a queue of them."""


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def repeated(action: Callable[[], object], rounds: int, pause_s: float = 0.0) -> list[float]:
    times = []
    for _ in range(rounds):
        times.append(timed(action))
        time.sleep(pause_s)
    return times


def spread(times: Sequence[float]) -> str:
    ordered = sorted(times)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered):8.2f} ms   p99 {last:8.2f} ms"


def show(what: str, value: str) -> None:
    print(f"  {what:54} {value}", flush=True)


def others() -> Iterator[tuple[str, list[str] | None]]:
    """Other ways to run Python code as a program; None for one that is not installed."""
    yield "python -c", ALONE
    yield "bubblewrap, python -c", JAIL if shutil.which("bwrap") else None


def has_smolagents() -> bool:
    if importlib.util.find_spec("smolagents") is None:
        show("smolagents, in process", "not installed: pip install 'envtorch[smolagents]'")
        return False
    return True


def bench_start(policy: Policy, rounds: int) -> None:
    print("\nstart to first result (smolagents: no process, no isolation)")
    made: list[Sandbox] = []

    def start() -> None:
        made.append(Sandbox(policy))
        made[-1].run("1")

    sizes = itertools.count(policy.memory_bytes, 4096)

    def start_first() -> None:
        made.append(Sandbox(Policy(memory_bytes=next(sizes))))
        made[-1].run("1")

    for what, action, pause_s in (
        ("sandbox, one now and then", start, PAUSE_S),
        ("sandbox, one right after the other", start, 0.0),
        ("sandbox, never a spare", start_first, 0.0),
    ):
        times = []
        for _ in range(rounds):
            times.append(timed(action))
            made.pop().close()
            time.sleep(pause_s)
        show(what, spread(times))
    with Pool(policy, size=8) as pool:
        times = []
        for _ in range(rounds):
            time.sleep(PAUSE_S)  # let it refill
            times.append(timed(lambda: made.append(pool.take()) or made[-1].run("1")))
            made.pop().close()
    show("sandbox out of a warm pool", spread(times))
    for name, command in others():
        if command is None:
            show(name, "bwrap is not installed: apt install bubblewrap")
            continue
        line = [*command, "print(1)"]
        show(name, spread(repeated(lambda line=line: subprocess.run(line, capture_output=True), rounds // 4)))
    if has_smolagents():
        from envtorch.sandbox.smolagents_executor import SmolagentsExecutor

        show("smolagents, in process", spread(repeated(lambda: SmolagentsExecutor().run("1"), rounds)))


def bench_step(policy: Policy, rounds: int) -> None:
    print("\nstep overhead: one run of `1`")
    with Sandbox(policy) as sandbox:
        show("sandbox", spread(repeated(lambda: sandbox.run("1"), rounds * 10)))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        sink, source = cat.stdin, cat.stdout
        echo = spread(repeated(lambda: (sink.write(b"x"), source.read(1)), rounds * 10))
        sink.close()
    if has_smolagents():
        from envtorch.sandbox.smolagents_executor import SmolagentsExecutor

        executor = SmolagentsExecutor()
        show("smolagents, in process", spread(repeated(lambda: executor.run("1"), rounds * 10)))
    show("physical limit: a byte to another process and back", echo)


def bench_loop(policy: Policy) -> None:
    print("\na pure Python loop of two million rounds, best of five")
    plain = min(repeated(lambda: exec(LOOP, {}), 5))
    show("this interpreter", f"{plain:8.0f} ms")
    with Sandbox(policy) as sandbox:
        inside = min(sandbox.run(LOOP).duration_s for _ in range(5)) * 1000
    show("sandbox", f"{inside:8.0f} ms   {inside / plain:6.2f} times")
    if has_smolagents():
        from envtorch.sandbox.smolagents_executor import SmolagentsExecutor

        short = LOOP.replace("2_000_000", "20_000")
        slow = min(repeated(lambda: SmolagentsExecutor().run(short), 3)) * 100
        show("smolagents, a hundredth of it times 100", f"{slow:8.0f} ms   {slow / plain:6.0f} times")


def bench_fork(policy: Policy, rounds: int) -> None:
    print("\nfork of a live sandbox, by its heap of small objects, one now and then")
    for size in (1, 32, 256):
        code = f"x = [{{'n': i, 's': str(i)}} for i in range({size} * 2900)]"
        with Sandbox(policy) as sandbox:
            assert sandbox.run(code).ok
            first = timed(lambda sandbox=sandbox: sandbox.fork()[0].close())
            times = fork_times(sandbox, rounds)
            after_a_run = fork_times(sandbox, rounds, code="y = 1")
        show(f"{size} MB", f"{spread(times)}   the first, and its end {first:6.1f} ms")
        show("  after a run", spread(after_a_run))
        bare = subprocess.run(
            [*ALONE, BARE_FORK.format(code=code)], capture_output=True, text=True, check=True
        )
        show(f"  physical limit: os.fork of the same, {size} MB", f"p50 {float(bare.stdout):8.2f} ms")
    with Sandbox(policy) as sandbox:
        many: list[Sandbox] = []
        show("100 forks in one call", f"{timed(lambda: many.extend(sandbox.fork(100))):8.0f} ms")
        for fork in many:
            fork.close()


def fork_times(sandbox: Sandbox, rounds: int, code: str | None = None) -> list[float]:
    """How long forks take, one now and then; before each of them `code` is run, if there is any."""
    times = []
    for _ in range(max(10, rounds // 3)):
        if code is not None:
            assert sandbox.run(code).ok
        time.sleep(PAUSE_S)
        made: list[Sandbox] = []
        times.append(timed(lambda made=made: made.extend(sandbox.fork())))
        made[0].close()
    return times


BARE_FORK = """
import os, statistics, time
{code}
def one():
    began = time.perf_counter()
    process = os.fork()
    if process == 0:
        os._exit(0)
    forked = time.perf_counter()
    os.waitpid(process, 0)
    return (forked - began) * 1000
print(statistics.median(one() for _ in range(20)))
"""


def bench_memory(policy: Policy, live: int) -> None:
    print("\nmemory of what is idle and has run one line: proportional set size")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    live = min(live, (hard - 200) // 4)
    gc.collect()
    before = available()
    sandboxes: list[Sandbox] = []
    try:
        took = timed(lambda: sandboxes.extend(Sandbox(policy) for _ in range(live)))
        for sandbox in sandboxes:
            sandbox.run("x = 1")
        parts = [proportional_sizes(sandbox) for sandbox in sandboxes]
        init, interpreter = (statistics.mean(part[place] for part in parts) / MEGABYTE for place in (0, 1))
        each = f"{init + interpreter:6.2f} MB each: init {init:.2f}, interpreter {interpreter:.2f}"
        show(f"sandbox, {live} live", each)
        show(
            "  less memory available on the machine",
            f"{(before - available()) / live / MEGABYTE:6.2f} MB each",
        )
        show("  started", f"{live} in {took / 1000:.1f} s, {live / took * 1000:.0f} per second")
    finally:
        show("  ended", f"in {timed(lambda: [sandbox.close() for sandbox in sandboxes]) / 1000:.1f} s")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name, command in others():
        if command is not None:
            show(f"{name}, 20 live", f"{idle_size([*command, IDLE], 20) / MEGABYTE:6.2f} MB each")


IDLE = "x = 1; print(1, flush=True); input()"


def idle_size(command: Sequence[str], count: int) -> float:
    with contextlib.ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        running = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(count)]
        for process in running:
            assert process.stdout is not None
            process.stdout.read(2)
        total = sum(tree_size(process.pid) for process in running)
        for process in running:
            process.communicate(b"\n")
    return total / count


def available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def proportional_sizes(sandbox: Sandbox) -> tuple[int, int]:
    """Of the init, and of everything below it."""
    init = sandbox._core.handle.host_process() or 0
    return proportional_size(init), tree_size(init) - proportional_size(init)


def tree_size(process: int) -> int:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return proportional_size(process) + sum(tree_size(int(child)) for child in children)


def proportional_size(process: int) -> int:
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    policy = Policy(memory_bytes=1024 * MEGABYTE)
    with Sandbox(policy) as sandbox:
        report = sandbox.report()
    scheduler = "real-time" if os.sched_getscheduler(0) == os.SCHED_FIFO else "ordinary"
    print(
        f"{report.grade} grade, user {os.getuid()}, Python {platform.python_version()}, "
        f"Linux {platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{scheduler} scheduling"
    )
    bench_start(policy, options.rounds)
    bench_step(policy, options.rounds)
    bench_loop(policy)
    if report.protects("fork"):
        bench_fork(policy, options.rounds)
    if os.geteuid() == 0:
        bench_memory(policy, options.live)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
