"""A call that does not return costs no slot where it can be stopped, and is counted where it cannot."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.errors import CapacityReached, FactoryFailed, TimedOut
from envtorch.server import create_app
from tests import patient
from tests.server import hanging
from tests.server.environments import Count, Order, Report
from tests.server.hanging import HangsInClose, HangsInInit, HangsInStep, IgnoresCancel
from tests.support import PATIENCE_S, Running, eventually, running

Wire = Literal["json", "msgpack", "openenv"]
WIRES: list[Wire] = ["json", "msgpack", "openenv"]
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


DIES_IN_STEP = """
import sys
from tests.server.test_stuck_sessions import Client, Order
env = Client(sys.argv[1], wire=sys.argv[2])
env.reset()
print("ready", flush=True)
env.step(Order(do="hang"))
"""


def die_in_a_step(url: str, wire: Wire) -> None:
    arguments = [sys.executable, "-c", DIES_IN_STEP, url, wire]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=ROOT, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "ready\n"
        eventually(
            lambda: 'envtorch_sessions{phase="busy"} 1.0' in patient.get(url + "/metrics").text,
            "the step runs",
        )
        trainer.send_signal(signal.SIGKILL)


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
