"""How long rollouts take: `python -m bench.rollouts`; with `--coding 1000` coding rollouts, and their memory.

Sixty-four rollouts of five turns, in groups of eight; the policy stands for a model on a GPU: 5 ms a call and
0.1 ms a prompt. All play on one server in one run; the least of `--rounds` counts.

TRL         `GRPOTrainer(environment_factory=...)` with such a model, on our blocking client (`trl_loops.py`),
            in the environment of `make test-train`
serial      the same order of events (resets one after another, then a call for all, then steps one after
            another) without TRL: no chat template, no tokens; sockets are open before
harness     OpenEnv's `build_harness_rollout_func` with OpenEnv's client, in the environment of `make compat`
rollouts    ours, with the opening of its sessions
in TRL      ours as the `rollout_func` of a `GRPOTrainer`, with the chat template and tokens of `TRL`
"""

import argparse
import asyncio
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.paced import PacedEnv, Press
from bench.proc import memory_mb
from envtorch.cli.target_server import TargetServer
from envtorch.envs.coding_env import CodingEnv
from envtorch.rollout import Completion, Ending, Prompt, Rollouts, Trajectory
from envtorch.rollout.chat_formats import JSONFormat

ROLLOUTS, TURNS, SIZE = 64, 5, 8
HERE = Path(__file__).parent
OPENENV = HERE.parent / ".venvs/openenv/bin/python"
TRL = HERE.parent / ".venvs/train-trl/bin/python"
AIMS = {0.0: 0.8, 0.002: 6.0, 0.02: 20.0}


def model_s(prompts: int) -> float:
    return 0.005 + 0.0001 * prompts


def pressed(prompt: Prompt) -> Completion:
    seen = prompt.messages[-1]["content"]
    return Completion(json.dumps({"button": int(seen.rsplit(" ", 1)[-1])}))


async def policy(prompts: Sequence[Prompt]) -> list[Completion]:
    await asyncio.sleep(model_s(len(prompts)))
    return [pressed(prompt) for prompt in prompts]


def tasks(step_s: float) -> list[dict[str, Any]]:
    return [{"seed": seed, "rounds": TURNS, "step_s": step_s} for seed in range(ROLLOUTS // SIZE)]


Timed = tuple[float, float]
"""Seconds, and the mean reward."""


def serial(url: str, step_s: float, rounds: int) -> Timed:
    """TRL's order of events, without TRL."""
    return min(one_by_one(url, step_s) for _ in range(rounds))


def one_by_one(url: str, step_s: float) -> Timed:
    envs = [PacedEnv(url).connect() for _ in range(ROLLOUTS)]
    began, total = time.perf_counter(), 0.0
    results = [env.reset(**tasks(step_s)[place // SIZE]) for place, env in enumerate(envs)]
    for _ in range(TURNS):
        time.sleep(model_s(ROLLOUTS))
        for place, env in enumerate(envs):
            results[place] = env.step(Press(button=results[place].observation.light))
            total += float(results[place].reward or 0.0)
    took = time.perf_counter() - began
    for env in envs:
        env.close()
    return took, total / ROLLOUTS


def harness(url: str, step_s: float, rounds: int) -> Timed:
    """OpenEnv's harness, once: its time is that of its steps and calls, which are all one after another."""
    command = [str(OPENENV), str(HERE / "openenv_harness.py"), url, str(step_s), str(ROLLOUTS), str(TURNS)]
    return told_by(command)


def in_trl(loop: str, url: str, step_s: float, rounds: int) -> Timed:
    """TRL with its own loop, or with ours."""
    numbers = [str(number) for number in (step_s, ROLLOUTS, SIZE, TURNS, rounds)]
    return told_by([str(TRL), "-W", "ignore", "-m", "bench.trl_loops", loop, url, *numbers])


def told_by(command: list[str]) -> Timed:
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    output = subprocess.check_output(command, text=True, cwd=HERE.parent, env=quiet)
    told = json.loads(output.splitlines()[-1])
    return told["seconds"], told["reward"]


def rollouts(url: str, step_s: float, rounds: int) -> Timed:
    async def play() -> Timed:
        began = time.perf_counter()
        made = Rollouts(PacedEnv, url, policy, format=JSONFormat(Press), concurrency=128, max_turns=TURNS)
        async with made:
            played = [t async for group in made.groups(tasks(step_s), size=SIZE) for t in group]
        took = time.perf_counter() - began
        return took, sum(t.reward or 0.0 for t in played) / len(played)

    return min(asyncio.run(play()) for _ in range(rounds))


def continuations(url: str) -> None:
    """Sixteen continuations of one state, sixteen steps in."""

    async def run() -> tuple[float, float]:
        task = {"seed": 1, "rounds": 17, "step_s": 0.02}

        async def walk(env: Any) -> None:
            result = await env.reset(**task)
            for _ in range(16):
                result = await env.step(Press(button=result.observation.light))

        async def replay() -> None:
            async with PacedEnv.aio(url) as env:
                await walk(env)
                await env.step(Press(button=0))

        began = time.perf_counter()
        await asyncio.gather(*(replay() for _ in range(16)))
        replayed = time.perf_counter() - began
        async with PacedEnv.aio(url) as env:
            await walk(env)
            began = time.perf_counter()
            copies = await env.fork(16)
            await asyncio.gather(*(copy.step(Press(button=0)) for copy in copies))
            forked = time.perf_counter() - began
            await asyncio.gather(*(copy.close() for copy in copies))
        return replayed, forked

    pairs = [asyncio.run(run()) for _ in range(3)]
    replayed, forked = (min(column) for column in zip(*pairs, strict=True))
    times = f"replayed {replayed:.2f} s, forked {forked:.2f} s, {replayed / forked:.1f}x"
    print(f"16 continuations after 16 steps of 20 ms: {times}")


def slow_session(url: str) -> None:
    """One session of sixteen whose steps take twenty times as long."""

    async def run(slow: int) -> list[float]:
        began = time.perf_counter()
        some = [{"seed": seed, "rounds": TURNS, "step_s": 0.02, "slow_seed": slow} for seed in range(16)]
        ended = []
        async with Rollouts(PacedEnv, url, policy, format=JSONFormat(Press), max_turns=TURNS) as made:
            async for _ in made.groups(some, size=1):
                ended.append(time.perf_counter() - began)
        return ended

    even, uneven = asyncio.run(run(-1)), asyncio.run(run(3))
    print(
        f"the last of 16 rollouts: {even[-1]:.2f} s; with one slow among them, the 15th {uneven[-2]:.2f} s, "
        f"the slow one {uneven[-1]:.2f} s"
    )


def coding(url: str, count: int) -> None:
    """Many coding rollouts at once: none lost, and the server's memory."""

    async def script(prompts: Sequence[Prompt]) -> list[Completion]:
        turns = [sum(m["role"] == "assistant" for m in prompt.messages) for prompt in prompts]
        return [Completion(f"```python\nx = {turn}\nprint(x * 7)\n```") for turn in turns]

    async def play() -> list[Trajectory]:
        some = [{"seed": seed} for seed in range(count // SIZE)]
        async with Rollouts(CodingEnv, url, script, concurrency=256, max_turns=3) as made:
            return [t async for group in made.groups(some, size=SIZE) for t in group]

    began = time.perf_counter()
    played = asyncio.run(play())
    took = time.perf_counter() - began
    lost = sum(t.ending is not Ending.MAX_TURNS for t in played)
    pace = f"{len(played) / took:.1f} a second"
    print(f"{len(played)} coding rollouts of 3 turns in {took:.1f} s: {pace}, {lost} lost")


def ways_here() -> dict[str, Callable[[str, float, int], Timed]]:
    """What can be compared here; what cannot is said."""
    ways: dict[str, Callable[[str, float, int], Timed]] = {"rollouts": rollouts, "serial": serial}
    if TRL.exists():
        ways |= {"TRL": partial(in_trl, "factory"), "in TRL": partial(in_trl, "rollout_func")}
    else:
        print(f"TRL: not compared, as {TRL} is not there: `make test-train ONLY=trl` installs it")
    if OPENENV.exists():
        ways["harness"] = harness
    else:
        print(f"harness: not compared, as {OPENENV} is not there: `make compat` installs it")
    return ways


def compare(url: str, rounds: int) -> None:
    ways = ways_here()
    for step_s, aim in AIMS.items():
        best = {name: way(url, step_s, rounds) for name, way in ways.items()}
        assert {round(reward, 6) for _, reward in best.values()} == {1.0}, best
        ours = best["rollouts"][0]
        told = [f"{name} {took:.2f} s ({took / ours:.1f}x)" for name, (took, _) in best.items()]
        batch = f"{ROLLOUTS} x {TURNS} turns, steps of {step_s * 1000:g} ms"
        print(f"{batch}: {', '.join(told)}; aim: TRL {aim:g}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--coding", type=int, metavar="N", help="N coding rollouts instead, and their memory")
    options = parser.parse_args()
    target = "coding_env" if options.coding else str(HERE / "paced.py")
    with TargetServer(target, ["--sessions", "512"]) as server:
        url = server.base_url
        assert url is not None
        if options.coding:
            with PeakMemory() as peak:
                coding(url, options.coding)
            print(f"peak memory of the server and its sandboxes: {peak.megabytes:,.0f} MB")
            return
        compare(url, options.rounds)
        continuations(url)
        slow_session(url)


class PeakMemory:
    """The most memory that this process's children had at any look, in their own share (PSS)."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            own = os.getpid()
            self.megabytes = max(self.megabytes, memory_mb(own, family=True) - memory_mb(own))
            if self._over.wait(1.0):
                return


if __name__ == "__main__":
    main()
