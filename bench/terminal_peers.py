"""What others use for terminal sessions, measured for `bench.terminal`: Docker, SWE-ReX, a plain process."""

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["Figures", "bench_docker", "bench_subprocess", "bench_swe_rex", "milliseconds", "tell"]

Figures = dict[str, float]
"""Milliseconds, or megabytes, by what was measured."""
IMPORTED = "envtorch-bench-root:latest"
CONTAINERS = 10
CHANGED = 3


def milliseconds(work: Callable[[], object], repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def tell(what: str, found: list[float]) -> float:
    middle = statistics.median(found)
    print(f"{what:<52} p50 {middle:8.1f} ms   max {max(found):8.1f}   n {len(found)}", flush=True)
    return middle


def bench_subprocess(repeats: int) -> Figures:
    plain = ["bash", "-c", "/bin/true"]
    found = milliseconds(lambda: subprocess.run(plain, check=True), 5 * repeats)
    return {"program": tell("plain subprocess: bash -c /bin/true", found)}


def bench_docker(image: str, root: str | None, changes: Mapping[str, str]) -> Figures:
    """`docker run`, `exec` and, for a copy of what has changed, `commit` and another `run`."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        print("docker: not measured, because no engine answers")
        return {}
    if root is not None:
        image = _import(docker, root)
    elif subprocess.run([docker, "image", "inspect", image], capture_output=True).returncode:
        print(f"docker: not measured, because the engine has no image {image}")
        return {}
    engine = _Engine(docker, image)
    try:
        return engine.measure(changes)
    finally:
        engine.remove()


def _import(docker: str, root: str) -> str:
    packed = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
    subprocess.run([docker, "import", "-", IMPORTED], stdin=packed.stdout, check=True, capture_output=True)
    assert packed.stdout is not None
    packed.stdout.close()
    packed.wait()
    return IMPORTED


class _Engine:
    """A container engine, and the containers and images that were made."""

    def __init__(self, docker: str, image: str) -> None:
        self._docker, self._image = docker, image
        self._names: list[str] = []
        self._images: list[str] = []

    def _ask(self, *words: str) -> str:
        done = subprocess.run([self._docker, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def _start(self, image: str) -> None:
        self._names.append(self._ask("run", "-d", "--network", "none", image, "sleep", "600"))

    def _ready(self) -> None:
        self._start(self._image)
        self._ask("exec", self._names[-1], "true")

    def _copy(self) -> None:
        self._images.append(self._ask("commit", "--pause=false", self._names[-1]))
        self._start(self._images[-1])
        self._ask("exec", self._names[-1], "true")

    def measure(self, changes: Mapping[str, str]) -> Figures:
        told = {"ready": tell("docker run, and a first docker exec", milliseconds(self._ready, CONTAINERS))}
        last = self._names[-1]
        found = milliseconds(lambda: self._ask("exec", last, "/bin/true"), 2 * CONTAINERS)
        told["program"] = tell("docker exec /bin/true", found)
        for what, change in changes.items():
            found = [self._first_copy(change) for _ in range(CHANGED)]
            told[f"fork {what}"] = tell(f"docker commit and run, {what} changed", found)
        return told

    def _first_copy(self, change: str) -> float:
        """Milliseconds of a copy of a container that was changed."""
        self._ready()
        self._ask("exec", self._names[-1], "bash", "-c", change)
        (took,) = milliseconds(self._copy, 1)
        return took

    def remove(self) -> None:
        if self._names:
            subprocess.run([self._docker, "rm", "-f", *self._names], capture_output=True)
        images = [*self._images[::-1], *([IMPORTED] if self._image == IMPORTED else [])]
        if images:
            subprocess.run([self._docker, "rmi", "-f", *images], capture_output=True)


SWE_REX = """
import asyncio, json, sys, time
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def timed(awaited):
    began = time.perf_counter()
    await awaited
    return (time.perf_counter() - began) * 1000

async def ready(runtime, name):
    await runtime.create_session(CreateBashSessionRequest(session=name))
    await runtime.run_in_session(BashAction(command="true", session=name))

async def main(repeats):
    runtime = LocalRuntime()
    told = {"ready": [], "builtin": [], "program": []}
    for number in range(repeats):
        told["ready"].append(await timed(ready(runtime, f"session-{number}")))
    for what, command in (("builtin", "true"), ("program", "/bin/true")):
        for _ in range(repeats):
            action = BashAction(command=command, session="session-0")
            told[what].append(await timed(runtime.run_in_session(action)))
    await runtime.close()
    print(json.dumps(told))

asyncio.run(main(int(sys.argv[1])))
"""


def bench_swe_rex(python: str | None, repeats: int) -> Figures:
    """Its local session: no isolation, no wire, a shell in a terminal."""
    if python is None or not Path(python).exists():
        print("swe-rex: not measured: name a Python that has it with --swe-rex")
        return {}
    command = [python, "-c", SWE_REX, str(min(repeats, 10))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(f"swe-rex: not measured: {done.stderr.strip()[-300:]}")
        return {}
    names = {"ready": "session and a first command", "builtin": "a builtin", "program": "a program"}
    found = json.loads(done.stdout.splitlines()[-1])
    return {what: tell(f"swe-rex: {names[what]}", times) for what, times in found.items()}
