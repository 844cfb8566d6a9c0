"""What a terminal session costs, over the wire and under the full locks, beside what others use for it.

    python -m bench.terminal [--root DIR] [--repeats 20] [--sessions 200] [--swe-rex PYTHON] [--only ours]

The server is a process of its own, its client speaks to it over a WebSocket. In the same run, as far as they
are there: `docker run`, `docker exec` and `docker commit` on the same root file system (with `--root`; else
on `--image`), SWE-ReX's local session in the Python that `--swe-rex` names, and a plain `subprocess`.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.proc import memory_mb
from bench.terminal_peers import Figures, bench_docker, bench_subprocess, bench_swe_rex, milliseconds, tell
from envtorch.envs.terminal_env import BashAction, SubmitAction, TerminalEnv

AIMS = {"ready": 20.0, "program": 4.0, "fork": 40.0, "memory": 4.0}
CHANGES = {
    "nothing": "true",
    "10 MB": "head -c 10M /dev/urandom > /root/filled",
    "500 MB": "head -c 500M /dev/urandom > /root/filled",
    "20,000 files": "mkdir /root/many; cd /root/many; seq 20000 | xargs touch; cd",
}
"""What a session has changed before it is forked."""
MOST_CHANGED = 5
"""How often each of them is made: half a gigabyte takes its time."""
TASK = {
    "task.toml": 'schema_version = "1.4"\n',
    "instruction.md": "Nothing.\n",
    "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
}
"""A task whose tests cost nothing, so that what is measured is the grade's own session."""


def serve_terminal(root: str, tasks: str, descriptor: int) -> None:
    """The server's process."""
    import dataclasses

    from envtorch import create_app, serve
    from envtorch.envs.terminal_env.environment import DEFAULT_POLICY, TerminalEnvironment

    policy = dataclasses.replace(DEFAULT_POLICY, root=root)

    class RootedTerminal(TerminalEnvironment):
        def __init__(self) -> None:
            super().__init__(policy=policy, tasks=tasks)

    serve(create_app(RootedTerminal, sessions=1024), listener=socket.socket(fileno=descriptor), drain_s=1.0)


@contextmanager
def terminal_server(root: str) -> Iterator[tuple[str, int]]:
    """The address and the process id of a server."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0), backlog=1024) as own:
        for place, text in TASK.items():
            path = Path(folder, "trivial", place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        served = ["--serve", str(own.fileno()), "--root", root, "--tasks", folder]
        command = [sys.executable, "-m", "bench.terminal", *served]
        with subprocess.Popen(command, pass_fds=[own.fileno()]) as process:
            try:
                yield f"http://127.0.0.1:{own.getsockname()[1]}", process.pid
            finally:
                process.terminate()


def bench_sessions(url: str, repeats: int) -> Figures:
    told: Figures = {}
    with TerminalEnv(url, message_timeout_s=600, connect_timeout_s=60) as env:
        env.reset()
        told["ready"] = tell(
            "session ready: reset and a first command", milliseconds(lambda: begin(env), repeats)
        )
        builtin, program = BashAction("true"), BashAction("/bin/true")
        told["builtin"] = tell("command: a builtin", milliseconds(lambda: env.step(builtin), 10 * repeats))
        told["program"] = tell("command: a program", milliseconds(lambda: env.step(program), 10 * repeats))
        for what, change in CHANGES.items():
            found = [first_fork(env, change) for _ in range(min(repeats, MOST_CHANGED))]
            told[f"fork {what}"] = tell(f"fork, {what} changed", found)
        grades = [grade(env) for _ in range(repeats)]
        told["grade"] = tell("grade: freeze, a fresh session, a test of nothing", grades)
    return told


def begin(env: TerminalEnv) -> None:
    env.reset()
    env.step(BashAction("true"))


def first_fork(env: TerminalEnv, change: str) -> float:
    """Milliseconds of the first fork after a change: another one would find it in a frozen layer."""
    env.reset()
    env.step(BashAction(change))
    began = time.perf_counter()
    (copy,) = env.fork(1)
    took = time.perf_counter() - began
    copy.close()
    return took * 1000


def grade(env: TerminalEnv) -> float:
    env.reset(task="trivial")
    began = time.perf_counter()
    result = env.step(SubmitAction())
    assert result.reward == 1.0
    return (time.perf_counter() - began) * 1000


async def bench_crowd(url: str, pid: int, count: int) -> Figures:
    """That many sessions at once: how soon all are ready, how long a command takes then, what each holds."""
    before, used = memory_mb(pid, family=True), used_megabytes()
    began = time.perf_counter()
    clients = [TerminalEnv.aio(url, message_timeout_s=600, connect_timeout_s=60) for _ in range(count)]
    ready = sorted(await asyncio.gather(*(open_one(client, began) for client in clients)))
    took = time.perf_counter() - began
    print(
        f"{count} sessions at once: all ready in {took:.2f} s, {count / took:.0f}/s; first {ready[0]:.0f} ms"
    )
    held = (memory_mb(pid, family=True) - before) / count
    total = (used_megabytes() - used) / count
    print(f"memory of an idle session: {held:.2f} MB of processes, {total:.2f} MB of the whole machine")
    each = []
    for client in clients:
        began = time.perf_counter()
        await client.step(BashAction("/bin/true"))
        each.append((time.perf_counter() - began) * 1000)
    tell(f"command: a program, {count} sessions alive", each)
    await asyncio.gather(*(client.close() for client in clients))
    return {"memory": held, "crowd": took * 1000 / count}


async def open_one(client: Any, began: float) -> float:
    await client.reset()
    await client.step(BashAction("true"))
    return (time.perf_counter() - began) * 1000


def used_megabytes() -> float:
    """What is not available of the machine's memory: the kernel's own share of a session is in it."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(lines["MemTotal"].split()[0]) - int(lines["MemAvailable"].split()[0])) / 1024


def compare(ours: Figures, others: dict[str, Figures]) -> None:
    print("\naims:")
    for what, aim in AIMS.items():
        found = {name: value for name, value in ours.items() if name.startswith(what)}
        for name, value in found.items():
            verdict = "met" if value <= aim else "missed"
            print(f"  {name:<22} {value:8.2f}   aim {aim:g}: {verdict}")
    print("\nratios, others by ours:")
    for other, figures in others.items():
        for what, value in figures.items():
            if what in ours:
                print(
                    f"  {other:<12} {what:<22} {value:9.1f} / {ours[what]:7.1f} = {value / ours[what]:7.1f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", default="host", help="a root file system, as a directory")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=200, help="how many at once")
    parser.add_argument("--image", default="python:3.11-slim", help="for Docker, without --root")
    parser.add_argument("--swe-rex", help="a Python that has swe-rex installed")
    parser.add_argument("--only", choices=["ours"], help="leave the others out")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--tasks", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve_terminal(given.root, given.tasks, given.serve)
        return
    with terminal_server(given.root) as (url, pid):
        ours = bench_sessions(url, given.repeats)
        ours |= asyncio.run(bench_crowd(url, pid, given.sessions))
    others: dict[str, Figures] = {}
    if given.only is None:
        others["subprocess"] = bench_subprocess(given.repeats)
        others["docker"] = bench_docker(given.image, None if given.root == "host" else given.root, CHANGES)
        others["swe-rex"] = bench_swe_rex(given.swe_rex, given.repeats)
    compare(ours, others)


if __name__ == "__main__":
    main()
