"""What recursion costs: child agents that inherit a parent with a large context, set up and counted.

    python bench/repl.py [--children 16] [--context-mb 100] [--rounds 10]

Set-up is from the call of `rlm_query_batched` until every child stands ready with its own context. New memory
is what the proportional set sizes of all processes of this program have grown by since: every page once.
Times are wall clock on this machine, now; the load beside them says how much of it others had.
"""

import argparse
import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from envtorch.envs.repl_env import Budget, REPLEnv, REPLEnvironment, ScriptedModel
from envtorch.envs.repl_env.events import Event, Forked
from envtorch.sandbox import Policy, Sandbox, SharedText
from envtorch.settings import REPLSettings

MEGABYTE = 2**20


def descendants() -> list[int]:
    """Every process below this one, and this one."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for process in found:
        found += parents.get(process, [])
    return found


def proportional_mb() -> float:
    """Memory of all our processes, pages that several have counted once."""
    total = 0
    for process in descendants():
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


@dataclass
class Watch:
    """Looks at the tree at the moment when its children stand ready."""

    before_mb: float = 0.0
    seconds: list[float] = field(default_factory=list)
    grown_mb: list[float] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Forked):
            self.seconds.append(event.seconds)
            self.grown_mb.append(proportional_mb() - self.before_mb)


def show(what: str, value: str) -> None:
    print(f"{what:62} {value}", flush=True)


def spread(values: list[float], unit: str) -> str:
    ordered = sorted(values)
    return f"p50 {statistics.median(ordered):8.1f} {unit}   least {ordered[0]:8.1f}   most {ordered[-1]:8.1f}"


def bench_children(children: int, megabytes: int, rounds: int) -> None:
    watch = Watch()

    def make() -> REPLEnvironment:
        return REPLEnvironment(
            model=ScriptedModel(lambda request: "```repl\nFINAL(len(context))\n```"),
            budget=Budget(children=children * (rounds + 1)),
            policy=Policy(preload=("random",)),
            settings=REPLSettings(),
            observer=watch,
        )

    context = "a line of generated text, and another\n" * (megabytes * 1_000_000 // 38)
    with REPLEnv.local(make) as env:
        env.reset(context=context, max_iterations=10 * rounds + 10)
        env.execute("lines = context.count('\\n')")
        for _ in range(rounds + 1):
            watch.before_mb = proportional_mb()
            code = f"answers = rlm_query_batched(['Measure.'] * {children})\nset(answers)"
            result = env.execute(code).observation.result
            assert result.stdout == repr({str(len(context))}), result
    times = [seconds * 1000 for seconds in watch.seconds[1:]]
    show(f"{children} children that inherit {megabytes} MB, set-up of all", spread(times, "ms"))
    show("  aim", "100 ms")
    show("  new memory", spread(watch.grown_mb[1:], "MB"))
    show("  aim", "20 MB")


def bench_context(megabytes: int) -> None:
    text = "x" * (megabytes * 1_000_000)
    with Sandbox(Policy(memory_bytes=2 * megabytes * MEGABYTE + 256 * MEGABYTE)) as sandbox:
        began = time.perf_counter()
        with SharedText(text) as shared:
            made = time.perf_counter()
            sandbox.share("context", shared)
        ended = time.perf_counter()
        assert sandbox.run("len(context)").json() == len(text)
    show(f"a context of {megabytes} MB into shared memory", f"{(made - began) * 1000:8.1f} ms")
    show("  and into a sandbox", f"{(ended - made) * 1000:8.1f} ms")


def bench_step() -> None:
    with REPLEnv.local(lambda: REPLEnvironment(settings=REPLSettings())) as env:
        env.reset(max_iterations=10_000)
        times = []
        for _ in range(500):
            began = time.perf_counter()
            env.execute("x = 1")
            times.append((time.perf_counter() - began) * 1000)
    show("one step in this process (code, and a look at its variables)", spread(times, "ms"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--children", type=int, default=16)
    parser.add_argument("--context-mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}\n")
    bench_step()
    bench_context(options.context_mb)
    bench_children(options.children, options.context_mb, options.rounds)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
