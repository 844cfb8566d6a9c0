"""Who is measured: EnvTorch and OpenEnv in their variants, and the bare sockets that are the limit."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
OPENENV_PYTHON = ROOT / ".venvs/openenv/bin/python"
START_TIMEOUT_S = 120


@dataclass(frozen=True)
class Contender:
    """One server: what to call it, and the module that runs it."""

    key: str
    name: str
    module: str
    args: tuple[str, ...] = ()
    counts_steps: bool = True
    is_family: bool = False
    """It is several processes, whose CPU time and memory are added up."""
    is_theirs: bool = False

    @property
    def python(self) -> str:
        return str(OPENENV_PYTHON) if self.is_theirs else sys.executable


ECHO = Contender("echo", "limit: bare picows echo", "bench.limits.echo", counts_steps=False)
HANDLER = Contender("handler", "limit: picows + msgspec + pydantic", "bench.limits.handler")
INLINE = Contender("inline", "EnvTorch, inline (`BLOCKING = False`)", "bench.servers.ours", ("inline",))
ASYNC = Contender("async", "EnvTorch, async environment", "bench.servers.ours", ("async",))
THREAD = Contender("thread", "EnvTorch, thread (the default)", "bench.servers.ours", ("thread",))
ASGI = Contender("asgi", "EnvTorch, inline, plain uvicorn", "bench.servers.ours", ("inline", "asgi"))
PROCESS = Contender(
    "process", "EnvTorch, process isolation", "bench.servers.ours", ("process",), is_family=True
)
TOGETHER = Contender(
    "together", "EnvTorch, class with `step_many`, objects in JSON", "bench.servers.ours", ("together",)
)
COLUMNS = Contender(
    "columns",
    "EnvTorch, class with `step_many`, columns in MessagePack",
    "bench.servers.ours",
    ("together",),
)
THEIRS = Contender(
    "openenv", "OpenEnv 0.10.0 (the default)", "bench.servers.theirs", ("thread",), is_theirs=True
)
THEIRS_ASYNC = Contender(
    "openenv-async", "OpenEnv 0.10.0, async environment", "bench.servers.theirs", ("async",), is_theirs=True
)
THEIRS_BEST = Contender(
    "openenv-best",
    "OpenEnv 0.10.0, async environment, uvloop",
    "bench.servers.theirs",
    ("async", "uvloop"),
    is_theirs=True,
)
THEIRS_TOGETHER = Contender(
    "openenv-together",
    "OpenEnv 0.10.0, class with `step_many`, uvloop",
    "bench.servers.theirs",
    ("together", "uvloop"),
    is_theirs=True,
)
"""Their best again, on the class that ours steps together; OpenEnv calls its `step_async`."""
PICTURES = Contender("pictures", "EnvTorch, MessagePack", "bench.servers.ours", ("pictures",))
THEIR_PICTURES = Contender(
    "openenv-pictures",
    "OpenEnv 0.10.0, lists in JSON",
    "bench.servers.theirs",
    ("pictures",),
    is_theirs=True,
)
CODING = Contender(
    "coding", "EnvTorch, `coding_env`", "bench.servers.ours", ("coding",), counts_steps=False, is_family=True
)
THEIR_CODING = Contender(
    "openenv-coding",
    "OpenEnv 0.10.0, `PyExecutor`",
    "bench.servers.theirs",
    ("coding",),
    counts_steps=False,
    is_family=True,
    is_theirs=True,
)
SANDBOX = Contender("sandbox", "EnvTorch, one sandbox", "")
BARE_HTTP = Contender("http", "limit: bare HTTP on uvloop", "bench.limits.http", counts_steps=False)
BATCH = Contender("batch", "limit: picows + msgspec + pydantic, batched", "bench.limits.batch")
INTERPRETER = Contender("interpreter", "limit: the interpreter alone", "")
OUR_IMPORT = Contender("envtorch-import", "EnvTorch", "")
THEIR_IMPORT = Contender("openenv-import", "OpenEnv 0.10.0", "", is_theirs=True)

ALL = (ECHO, HANDLER, INLINE, ASYNC, THREAD, ASGI, PROCESS, THEIRS, THEIRS_ASYNC, THEIRS_BEST,
    THEIRS_TOGETHER, TOGETHER, COLUMNS, PICTURES, THEIR_PICTURES, CODING,
    THEIR_CODING, SANDBOX, BARE_HTTP, BATCH, INTERPRETER,
    OUR_IMPORT, THEIR_IMPORT)  # fmt: skip
BY_KEY = {contender.key: contender for contender in ALL}


@dataclass(frozen=True)
class Cores:
    """Who runs where: the load on the first core, the server on the second, where there are two."""

    load: frozenset[int]
    server: frozenset[int]

    @classmethod
    def of(cls, available: set[int]) -> "Cores":
        ordered = sorted(available)
        if len(ordered) < 2:
            return cls(frozenset(ordered), frozenset(ordered))
        return cls(frozenset(ordered[:1]), frozenset(ordered[1:2]))


CORES = Cores.of(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Server:
    """A contender that runs."""

    contender: Contender
    port: int
    pid: int


def start(command: list[str], cores: frozenset[int], **options: object) -> "subprocess.Popen[str]":
    """A process of the project's root folder, kept to those cores."""
    process = subprocess.Popen(command, cwd=ROOT, text=True, **options)  # type: ignore[call-overload]
    os.sched_setaffinity(process.pid, cores)
    return process  # type: ignore[no-any-return]


@contextmanager
def serving(contender: Contender) -> Iterator[Server]:
    """The contender's server, ready to answer, on a core of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        descriptor = listener.fileno()
        command = [contender.python, "-m", contender.module, str(descriptor), *contender.args]
        cores = CORES.server | CORES.load if contender.is_family else CORES.server
        process = start(command, cores, pass_fds=[descriptor])
        port = listener.getsockname()[1]
    try:
        wait_for(port)
        yield Server(contender, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(port: int) -> None:
    """Until the server answers anything at all."""
    with socket.create_connection(("127.0.0.1", port), timeout=START_TIMEOUT_S) as probe:
        probe.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        probe.recv(1)


def run_json(module: str, argument: str, *, python: str = sys.executable, timeout_s: float = 600) -> str:
    """What a module prints, run on the load's core with one argument."""
    command = [python, "-m", module, argument]
    process = start(command, CORES.load, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"{module} ended with {process.returncode}: {err[-1000:]}")
    return out
