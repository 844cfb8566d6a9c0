"""A thousand sessions opened, stepped and dropped leave nothing behind."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from envtorch import EnvClient
from envtorch.protocol.calls import Call
from envtorch.server import create_app
from envtorch.server.sessions.session import Session
from tests import patient
from tests.chaos.usage import Usage
from tests.server.environments import Count, Order, Report
from tests.server.walkers import QuickWalker, Walker
from tests.support import PATIENCE_S, eventually

SESSIONS = 1000
AT_ONCE = 50

SERVER = """
import asyncio, socket, sys, threading
from envtorch.server import create_app, serve
from {module} import {environment}

app = create_app({environment}, max_concurrent_envs=1000)

@app.get("/left")
async def left() -> dict[str, int]:
    # Idle threads are kept for sessions to come, up to a number, and are counted by their stock.
    me = asyncio.current_task()
    return {{
        "sessions": app.state.env_server.active_sessions,
        "threads": threading.active_count() - len(app.state.env_server.sessions.threads._idle),
        "tasks": sum(task is not me for task in asyncio.all_tasks()),
    }}

serve(app, listener=socket.socket(fileno=int(sys.argv[1])))
"""


class ServerProcess:
    def __init__(self, environment: str, module: str = "tests.server.environments") -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            code = SERVER.format(environment=environment, module=module)
            fd = listener.fileno()
            here = Path(__file__).parents[2]
            self.process = subprocess.Popen([sys.executable, "-c", code, str(fd)], pass_fds=[fd], cwd=here)

    def left(self) -> dict[str, int]:
        counts: dict[str, int] = patient.get(self.url + "/left").json()
        # The question itself holds a descriptor; httpx has closed it by now, or will in a moment.
        return {**counts, "descriptors": len(os.listdir(f"/proc/{self.process.pid}/fd"))}

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)


@pytest.fixture(params=["Obedient", "AsyncObedient"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    process = ServerProcess(request.param)
    yield process
    process.end()


async def open_step_and_drop(url: str) -> None:
    socket = await connect(url.replace("http", "ws") + "/ws", compression=None, ping_interval=None)
    await socket.send('{"type":"reset"}')
    await socket.recv()
    await socket.send('{"type":"step","data":{"do":"x"}}')
    await socket.recv()
    socket.transport.abort()  # no close frame: as if the machine had vanished


async def in_waves(url: str, sessions: int) -> None:
    for _ in range(0, sessions, AT_ONCE):
        await asyncio.gather(*(open_step_and_drop(url) for _ in range(AT_ONCE)))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_dropped_sessions_leave_nothing(server: ServerProcess) -> None:
    asyncio.run(in_waves(server.url, SESSIONS // 2))  # what is made once, and kept, is made now
    eventually(lambda: server.left()["sessions"] == 0, "the sessions of the first round are gone")
    before = server.left()
    asyncio.run(in_waves(server.url, SESSIONS))

    def all_gone() -> bool:
        now = server.left()
        return all(now[what] <= before[what] for what in before)

    eventually(all_gone, f"everything is as it was: {before}", timeout_s=PATIENCE_S)
    print(f"{SESSIONS} sessions dropped; before {before}, after {server.left()}")


FORKS = 600
STEP = Order(do="walk")


class WalkerEnv(EnvClient[Order, Report, Count]): ...


def fork_blocking(url: str) -> None:
    """So many copies, of the first session and of copies, each of them stepped and closed."""
    with WalkerEnv(url) as root:
        root.reset()
        for _ in range(FORKS // 4):
            [child, sibling] = root.fork(2)
            [grandchild] = child.fork(1)
            [great_grandchild] = grandchild.fork(1)
            for copy in (child, sibling, grandchild, great_grandchild):
                copy.step(STEP)
                copy.close()


def fork_async(url: str) -> None:
    async def main() -> None:
        async with WalkerEnv.aio(url) as root:
            await root.reset()
            for _ in range(FORKS // 4):
                [child, sibling] = await root.fork(2)
                [grandchild] = await child.fork(1)
                [great_grandchild] = await grandchild.fork(1)
                for copy in (child, sibling, grandchild, great_grandchild):
                    await copy.step(STEP)
                    await copy.close()

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory in /proc")
@pytest.mark.parametrize(
    ("environment", "fork"), [("QuickWalker", fork_blocking), ("Walker", fork_async)], ids=["loop", "thread"]
)
def test_forks_of_forks_leave_no_memory_behind(environment: str, fork: Callable[[str], None]) -> None:
    server = ServerProcess(environment, "tests.server.walkers")
    try:
        megabytes = []
        for _ in range(3):  # the first round also makes what is made once, and kept
            fork(server.url)
            eventually(lambda: server.left()["sessions"] == 0, "the sessions of this round are gone")
            megabytes.append(Usage.of(server.process.pid).megabytes)
        print(f"{environment}: {megabytes} MB after rounds of {FORKS} forks")
        assert megabytes[2] < 1.05 * megabytes[1], megabytes
    finally:
        server.end()


@pytest.mark.parametrize("kind", [QuickWalker, Walker])
def test_closed_forks_leave_no_session_behind_even_without_the_collector(kind: type[Walker]) -> None:
    async def main() -> tuple[int, int]:
        sessions = create_app(kind, max_concurrent_envs=8).state.env_server.sessions
        parent = await sessions.open(held=True)
        await parent.call(Call.reset())
        gc.collect()
        gc.disable()
        try:
            before = live_sessions()
            for _ in range(100):
                [copy] = await sessions.fork(parent, 1)
                await copy.close()
            del copy
            await asyncio.sleep(0.01)  # a closing task's last references go with it
            return before, live_sessions()
        finally:
            gc.enable()
            await sessions.close()

    before, after = asyncio.run(main())
    assert after <= before + 1, "at most the newest copy is still referred to"


def live_sessions() -> int:
    return sum(isinstance(found, Session) for found in gc.get_objects())
