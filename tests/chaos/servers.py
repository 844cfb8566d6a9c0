"""Servers that are killed and started anew, and the line to them, which is bad."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.environment import LOG
from tests.complaints import complaints
from tests.support import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]
GIVE_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Has the C library return free memory to the kernel at once, so that memory in use can be seen."""


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(below for child in children(pid) for below in family(child))]


class ServerProcess:
    """`envtorch serve`, on a port of its own choice."""

    def __init__(self, environment: str, log: Path, options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "envtorch.cli", "serve", environment, "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--sessions", "4000", "--drain", "2", *options],
            cwd=ROOT,
            env={**os.environ, **GIVE_BACK, LOG: str(log)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        assert " on http" in said, said + self.process.stderr.read()
        self.url = said.split(" on ")[1].split()[0]
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            self.said.extend(line.rstrip() for line in stream)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def end(self, number: signal.Signals) -> None:
        """End the server, and all its processes with it."""
        self.below = family(self.process.pid)[1:]
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class BadLine:
    """The proxy's process, and the way to it."""

    def __init__(self, seed: int, faults_per_second: float) -> None:
        command = [sys.executable, "-m", "tests.chaos.bad_line", str(seed), str(faults_per_second)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def close(self) -> Counter[str]:
        """End the line; how often it broke, and how."""
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        return Counter(json.loads(said))


class Place:
    """One server behind one bad line: its address stays while servers come and go."""

    def __init__(self, environment: str, log: Path, options: Sequence[str], seed: int, faults: float) -> None:
        self._dice = random.Random(seed)
        self._start: Callable[[], ServerProcess] = lambda: ServerProcess(environment, log, options)
        self._has_workers = "--workers" in options
        self.server = self._start()
        self.line = BadLine(seed, faults)
        self.line.tell(f"target {self.server.port}")
        self.killed: Counter[str] = Counter()
        self._said: list[str] = []
        self._below: list[int] = []

    def strike(self) -> None:
        """Kill a worker, or the server, which is then started anew; or end it in an orderly way."""
        how = self._dice.choice(
            ["worker", "SIGKILL", "SIGTERM"] if self._has_workers else ["SIGKILL", "SIGTERM"]
        )
        self.killed[how] += 1
        if how == "worker":
            os.kill(self._dice.choice(children(self.server.process.pid)), signal.SIGKILL)
            return
        self._end(signal.Signals[how])
        self.server = self._start()
        self.line.tell(f"target {self.server.port}")

    def _end(self, number: signal.Signals) -> None:
        self.server.end(number)
        self._said += self.server.said
        self._below += self.server.below

    def close(self) -> Counter[str]:
        """End the server and the line; how often the line broke."""
        self._end(signal.SIGTERM)
        return self.line.close()

    def left(self) -> list[int]:
        """The processes of servers that have ended."""
        with suppress(AssertionError):
            eventually(lambda: not any(map(is_alive, self._below)), "all have ended", timeout_s=20)
        return [pid for pid in self._below if is_alive(pid)]

    def complaints(self) -> list[str]:
        """What no server should have to write."""
        return complaints(self._said)


@contextmanager
def places(log: Path, faults: float) -> Iterator[list[Place]]:
    """The kinds of server that sessions are played on."""
    module = "tests.chaos.environment"
    kinds = [
        (f"{module}:Marking", []),
        (f"{module}:MarkingOnLoop", ["--workers", "2"]),
        (f"{module}:Marking", ["--isolation", "process"]),
    ]
    found = [Place(name, log, options, seed, faults) for seed, (name, options) in enumerate(kinds)]
    try:
        yield found
    finally:
        for place in found:
            if place.server.process.poll() is None:
                place.close()
