"""What a sandbox costs: its start, a step, its memory when idle, and a fork of one that holds 32 MB."""

import os
import statistics
import time

from bench.clients.timing import asked, tell
from bench.sandbox import MEGABYTE, PAUSE_S, fork_times, proportional_sizes, repeated, timed
from envtorch.sandbox import Policy, Sandbox

HEAP = "x = [{'n': i, 's': str(i)} for i in range(32 * 2900)]"
"""A heap of small objects, 32 MB in all."""


def start_ms(policy: Policy, rounds: int) -> float:
    """From nothing to the first result, one now and then."""
    made: list[Sandbox] = []

    def start() -> None:
        made.append(Sandbox(policy))
        made[-1].run("1")

    def started() -> float:
        took = timed(start)
        made.pop().close()
        time.sleep(PAUSE_S)
        return took

    return statistics.median(started() for _ in range(rounds))


def idle_mb(policy: Policy, live: int) -> float:
    """The proportional set size of each of so many that have run one line. Only root can see it."""
    sandboxes = [Sandbox(policy) for _ in range(live)]
    try:
        for sandbox in sandboxes:
            sandbox.run("x = 1")
        return statistics.mean(sum(proportional_sizes(sandbox)) for sandbox in sandboxes) / MEGABYTE
    finally:
        for sandbox in sandboxes:
            sandbox.close()


def main() -> None:
    job = asked()
    policy = Policy(memory_bytes=1024 * MEGABYTE)
    values = {"start_ms": start_ms(policy, job["rounds"])}
    with Sandbox(policy) as sandbox:
        values["step_ms"] = statistics.median(repeated(lambda: sandbox.run("1"), 10 * job["rounds"]))
        if sandbox.report().protects("fork"):
            sandbox.run(HEAP)
            values["fork_ms"] = statistics.median(fork_times(sandbox, job["rounds"]))
    if os.geteuid() == 0:
        values["idle_mb"] = idle_mb(policy, job["live"])
    tell(values)


if __name__ == "__main__":
    main()
