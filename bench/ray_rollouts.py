"""Rollouts on Ray beside one driver, and with 1, 2 and 3 drivers: `python -m bench.ray_rollouts`.

A Ray cluster is started on this machine, with a server of `paced.py` in an actor for each driver. The policy
answers at once, so that all there is to measure is the work of drivers and servers. First all episodes are
driven by this process, and the same by one actor, in turn on one server; then there are as many drivers as
servers. CPU time is that of this process and all its descendants: servers, actors and Ray's own processes,
which run in both cases. Needs Ray (`make test-ray` installs it), and matplotlib for `--plot`.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray

from bench.paced import PacedEnv, Press
from bench.proc import cpu_seconds
from envtorch.providers import RayProvider
from envtorch.rollout import Completion, Ending, Prompt, Rollouts
from envtorch.rollout.chat_formats import JSONFormat

ROOT = Path(__file__).parents[1]
TURNS, SIZE = 20, 8
PAIRS = (1, 2, 3)


class Figures(NamedTuple):
    """What one run came to."""

    steps_per_s: float
    steps_per_cpu_s: float
    cores: float


async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
    return [
        Completion(json.dumps({"button": int(prompt.messages[-1]["content"].rsplit(" ", 1)[-1])}))
        for prompt in prompts
    ]


async def played(where: list[str], groups: int, on: Any, sessions: int) -> Figures:
    """Play groups on these servers, after a few that are not measured."""
    options: dict[str, Any] = {"format": JSONFormat(Press), "max_turns": TURNS, "on": on}
    async with Rollouts(PacedEnv, where, policy, concurrency=sessions, **options) as rollouts:

        async def play(seeds: range) -> int:
            tasks = [{"seed": seed, "rounds": TURNS} for seed in seeds]
            episodes = [one async for group in rollouts.groups(tasks, size=SIZE) for one in group]
            assert all(one.ending is Ending.DONE and round(one.reward or 0, 6) == 1.0 for one in episodes)
            return sum(len(one.turns) for one in episodes)

        await play(range(4 * len(where)))
        cpu, began = cpu_seconds(os.getpid(), family=True), time.perf_counter()
        steps = await play(range(1000, 1000 + groups))
        took, spent = time.perf_counter() - began, cpu_seconds(os.getpid(), family=True) - cpu
    return Figures(steps / took, steps / spent, spent / took)


def median(runs: list[Figures]) -> Figures:
    return Figures(*(statistics.median(column) for column in zip(*runs, strict=True)))


def told(name: str, found: Figures) -> str:
    pace = f"{found.steps_per_s:8,.0f} steps/s  {found.steps_per_cpu_s:8,.0f} steps per CPU second"
    return f"{name:22}{pace}  {found.cores:4.2f} cores busy"


def measure(urls: list[str], groups: int, rounds: int, sessions: int) -> dict[int, Figures]:
    here, there = [], []
    for _ in range(rounds):
        here.append(asyncio.run(played(urls[:1], groups, None, sessions)))
        there.append(asyncio.run(played(urls[:1], groups, "ray", sessions)))
    print(told("one process", median(here)))
    print(told("one driver on Ray", median(there)))
    ratio = median(there).steps_per_cpu_s / median(here).steps_per_cpu_s
    print(f"steps per CPU second on Ray: {ratio:.2f} of one process; aim: 0.80 to 1.20")
    pairs: dict[int, list[Figures]] = {count: [] for count in PAIRS}
    for _ in range(rounds):
        for count in PAIRS:
            pairs[count].append(asyncio.run(played(urls[:count], groups, "ray", sessions * count)))
    for count, runs in pairs.items():
        print(told(f"{count} drivers, {count} servers", median(runs)))
    return {count: median(runs) for count, runs in pairs.items()}


def draw(found: dict[int, Figures], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    left.plot(list(found), [one.steps_per_s for one in found.values()], marker="o", color="tab:blue")
    left.set(title="steps per second, all drivers", xlabel="pairs of driver and server", ylim=(0, None))
    right.plot(list(found), [one.cores for one in found.values()], marker="o", color="tab:green")
    right.axhline(os.cpu_count() or 1, color="0.6", linestyle=":")
    right.set(title="cores busy, all processes", xlabel="pairs of driver and server", ylim=(0, None))
    for axis in (left, right):
        axis.set_xticks(list(found))
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--groups", type=int, default=100, help="groups of eight episodes of twenty steps a run"
    )
    parser.add_argument("--sessions", type=int, default=64, help="open at once for each driver")
    parser.add_argument("--plot", type=Path, help="where to write the picture")
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        "local", num_cpus=8, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False
    )
    providers = [RayProvider() for _ in PAIRS]
    try:
        urls = [one.start_container("bench.paced:app", directory=str(ROOT)) for one in providers]
        for provider, url in zip(providers, urls, strict=True):
            provider.wait_for_ready(url)
        found = measure(urls, options.groups, options.rounds, options.sessions)
        if options.plot is not None:
            draw(found, options.plot)
    finally:
        for provider in providers:
            provider.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
