"""A call that does not return costs no slot where it can be stopped, and is counted where it cannot."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal

import pytest
from websockets.sync.client import connect

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.errors import CapacityReached, EnvTorchError, FactoryFailed, TimedOut
from envtorch.protocol.calls import Call
from envtorch.server import create_app
from envtorch.server.sessions import registry
from tests import patient
from tests.server import hanging
from tests.server.environments import Count, Order, Report
from tests.server.hanging import HangsInClose, HangsInExecutor, HangsInInit, HangsInStep, IgnoresCancel
from tests.support import PATIENCE_S, Running, eventually, running

Wire = Literal["json", "openenv"]
WIRES: list[Wire] = ["json", "openenv"]
ROOT = Path(__file__).parents[2]


class Client(EnvClient[Order, Report, Count]): ...


@contextmanager
def serving(source: Any, *, isolation: str | None = None) -> Iterator[Running]:
    """A server whose deadlines are short; whatever hangs in it returns at the end of the block."""
    start_s = 1.0 if source is HangsInInit else PATIENCE_S
    config = ConcurrencyConfig(
        max_concurrent_envs=1, reconnect_grace=0.1, stop_timeout=0.2, start_timeout=start_s
    )
    app = create_app(source, Order, Report, concurrency_config=config, isolation=isolation)
    hanging.released.clear()
    with running(app) as server:
        try:
            yield server
        finally:
            hanging.released.set()


# Four ways to leave a call behind that does not return.


def give_up_on_a_step(url: str, wire: Wire) -> None:
    with Client(url, wire=wire) as env:
        env.reset()
        with pytest.raises(TimedOut):
            env.step(Order(do="hang"), timeout_s=0.2)


STEPS = """
import sys
from tests.server.test_stuck_sessions import Client, Order
env = Client(sys.argv[1], wire=sys.argv[2])
env.reset()
print("ready", flush=True)
env.step(Order(do="hang"))
"""


@contextmanager
def trainer_in_a_step(url: str, wire: Wire) -> Iterator[None]:
    """A process that waits for a step that hangs. It is killed, with SIGKILL, at the end of the block."""
    arguments = [sys.executable, "-c", STEPS, url, wire]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=ROOT, text=True) as trainer:
        try:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == "ready\n"
            busy = 'envtorch_sessions{phase="busy"} 1.0'
            eventually(lambda: busy in patient.get(url + "/metrics").text, "the step runs")
            yield
        finally:
            trainer.kill()


def die_in_a_step(url: str, wire: Wire) -> None:
    with trainer_in_a_step(url, wire):
        pass


def close_a_session(url: str, wire: Wire) -> None:
    env = Client(url, wire=wire)
    env.reset()
    env.close()


def open_a_session(url: str, wire: Wire) -> None:
    with pytest.raises(FactoryFailed) as refused, Client(url, wire=wire) as env:
        env.reset()
    if wire != "openenv":  # which has no field for it
        assert "did not return within 1 s" in refused.value.details["reason"]


Leave = Callable[[str, Wire], None]
WAYS: list[tuple[type[HangsInStep], Leave]] = [
    (HangsInStep, give_up_on_a_step),
    (HangsInStep, die_in_a_step),
    (HangsInClose, close_a_session),
    (HangsInInit, open_a_session),
]
by_name = pytest.mark.parametrize(("source", "leave"), WAYS, ids=[leave.__name__ for _, leave in WAYS])


def stuck_in_metrics(url: str) -> int:
    lines = patient.get(url + "/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith("envtorch_sessions_stuck ")).split()[1]))


def children_of_supervisor(server: Running) -> list[int]:
    launcher = server.sessions._launcher
    assert launcher is not None
    lists = Path(f"/proc/{launcher.supervisor_process}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def sessions_processes(server: Running) -> list[int]:
    """The processes of environments: each leads a session of its own, which the zygote does not."""
    found = []
    for child in children_of_supervisor(server):
        with suppress(ProcessLookupError):
            found += [child] if os.getsid(child) == child else []
    return found


@pytest.mark.parametrize("wire", WIRES)
@by_name
def test_an_isolated_call_that_hangs_is_killed_and_its_slot_is_free(
    source: type[HangsInStep], leave: Leave, wire: Wire
) -> None:
    with serving(source, isolation="process") as server:
        leave(server.url, wire)
        eventually(lambda: server.sessions.active == 0, "the slot is free")
        eventually(lambda: sessions_processes(server) == [], "its process is gone")
        assert server.sessions.stuck == 0
        assert patient.get(server.url + "/ready").json() == {"ready": True}
        if source is not HangsInInit:
            with Client(server.url, wire=wire) as env:
                assert env.reset().observation.said == "reset"


@pytest.mark.parametrize("wire", WIRES)
@by_name
def test_a_thread_that_hangs_is_counted_until_it_returns(
    source: type[HangsInStep], leave: Leave, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with serving(source) as server:
        leave(server.url, wire)
        eventually(lambda: stuck_in_metrics(server.url) == 1, "the session counts as stuck")
        ready = patient.get(server.url + "/ready")
        assert (ready.status_code, ready.json()) == (503, {"ready": False, "detail": "full", "stuck": 1})
        with pytest.raises(CapacityReached, match="1 of them is stuck"):
            Client(server.url, wire=wire, wait_s=0).reset()
        logged = [
            record.getMessage() for record in caplog.records if "does not return" in record.getMessage()
        ]
        assert len(logged) == 1, logged
        assert source.__name__ in logged[0]

        hanging.released.set()
        eventually(lambda: server.sessions.active == 0, "the call returned, and its slot is free")
        assert server.sessions.stuck == stuck_in_metrics(server.url) == 0
        with Client(server.url, wire=wire) as env:
            assert env.reset().observation.said == "reset"


def test_a_task_that_ignores_its_cancellation_is_counted_until_it_returns() -> None:
    with serving(IgnoresCancel) as server:
        give_up_on_a_step(server.url, "json")
        eventually(lambda: stuck_in_metrics(server.url) == 1, "the session counts as stuck")
        hanging.released.set()
        eventually(lambda: server.sessions.active == 0, "its slot is free")
        assert server.sessions.stuck == 0


def test_a_client_that_leaves_during_a_slow_start_is_not_counted_as_stuck() -> None:
    """An environment is stuck when it takes longer than it may, not when its client has gone."""
    with serving(HangsInInit) as server:
        with server.socket():
            eventually(lambda: server.sessions.active == 1, "an environment is being built")
            assert server.sessions.stuck == 0
        hanging.released.set()
        eventually(lambda: server.sessions.active == 0, "its slot is free")
        assert server.sessions.stuck == 0


# Stopping a server.

SERVER = """
import logging, socket, sys
from envtorch import ConcurrencyConfig
from envtorch.server import create_app, serve
from envtorch.server.sessions import registry
from tests.server import hanging
from tests.server.environments import Order, Report

logging.basicConfig(level="WARNING")
registry.CLOSE_S = 600
config = ConcurrencyConfig(max_concurrent_envs=4, stop_timeout=600, start_timeout=600)
isolation = sys.argv[4] if sys.argv[4] != "thread" else None
app = create_app(getattr(hanging, sys.argv[2]), Order, Report, concurrency_config=config, isolation=isolation)
listener = socket.socket(fileno=int(sys.argv[1]))
ready = (lambda: None) if sys.argv[3] == "eager" else None
serve(app, listener=listener, drain_s=DRAIN_S, on_ready=ready)
"""
DRAIN_S = 2.0
"""How long running calls have. Every other limit of these servers is ten minutes: one that waits for anything
but its drain time is still there when the patience of `Served.stop` ends."""


@contextmanager
def server_process(
    source: type, place: str = "thread", *, eager: bool = False, log: IO[str] | None = None
) -> Iterator["Served"]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        fd = listener.fileno()
        code = SERVER.replace("DRAIN_S", str(DRAIN_S))
        arguments = [str(fd), source.__name__, "eager" if eager else "lazy", place]
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(command, pass_fds=[fd], cwd=ROOT, stderr=log)
    try:
        yield Served(url, process)
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """Send SIGTERM, and see the process exit with 0."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("place", ["thread", "process"])
@pytest.mark.parametrize("wire", WIRES)
def test_sigterm_ends_a_server_with_a_hung_step(wire: Wire, place: str) -> None:
    with server_process(HangsInStep, place) as served, trainer_in_a_step(served.url, wire):
        served.stop()


@pytest.mark.parametrize("source", [HangsInExecutor, IgnoresCancel])
def test_sigterm_ends_a_server_whose_event_loop_cannot_end(source: type[HangsInStep]) -> None:
    with TemporaryFile("w+") as log:
        with server_process(source, log=log) as served, trainer_in_a_step(served.url, "json"):
            served.stop()
        log.seek(0)
        said = log.read()
    assert f"{source.__name__} (" in said, "the log says which environment it was"
    assert "keeps the event loop from ending" in said


@pytest.mark.parametrize("place", ["thread", "process"])
def test_sigterm_ends_a_server_with_a_hung_close(place: str) -> None:
    with server_process(HangsInClose, place) as served:
        env = Client(served.url)
        env.reset()
        served.stop()
        with suppress(EnvTorchError):
            env.close()


@pytest.mark.parametrize("eager", [False, True], ids=["session", "startup"])
@pytest.mark.parametrize("place", ["thread", "process"])
def test_sigterm_ends_a_server_with_a_hung_constructor(place: str, eager: bool) -> None:
    with server_process(HangsInInit, place, eager=eager) as served:
        eventually(lambda: patient.get(served.url + "/ready").json()["ready"], "the server is up")
        with connect(served.url.replace("http", "ws") + "/ws", ping_interval=None):
            served.stop()


def test_closing_after_a_drain_that_used_up_its_time_waits_no_further_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        config = ConcurrencyConfig(stop_timeout=600)
        sessions = create_app(HangsInStep, Order, Report, concurrency_config=config).state.env_server.sessions
        session = await sessions.open(held=True)
        await session.call(Call.reset())
        session.submit(Call("step", b'{"do": "hang"}'))
        assert not await sessions.drain(0.01)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await sessions.close()
        finally:
            hanging.released.set()

    monkeypatch.setattr(registry, "CLOSE_S", 10 * PATIENCE_S)
    hanging.released.clear()
    asyncio.run(main())
