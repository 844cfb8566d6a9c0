"""A worker that ended is replaced, also where the system has no room for another one at first."""

import asyncio
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import pytest

from envtorch.server.workers.session_register import Register
from envtorch.server.workers.shared_counters import Page
from envtorch.server.workers.worker_messages import WorkerPlan
from envtorch.server.workers.worker_process import WorkerChild
from tests.server.workers.support import step, workers_server
from tests.support import eventually

HERE, THERE = 0, 1

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit and /proc")


def descriptors(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def test_the_other_workers_serve_until_one_can_be_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    with workers_server() as server:
        master, victim = server.process.pid, server.process_of(THERE)
        open_before = descriptors(master)
        limits = resource.prlimit(master, resource.RLIMIT_NOFILE)
        with server.wire(HERE) as wire:
            wire.open()
            resource.prlimit(master, resource.RLIMIT_NOFILE, (3, limits[1]))
            os.kill(victim, signal.SIGKILL)
            told = ""

            def has_tried_twice() -> bool:
                nonlocal told
                told += capfd.readouterr().err
                return server.process.poll() is not None or told.count("worker 1 cannot be started") >= 2

            eventually(has_tried_twice, "the master tries to start another worker")
            assert server.process.poll() is None, "the master goes on"
            assert wire.ask(**step(1))["data"]["observation"]["total"] == 1
            resource.prlimit(master, resource.RLIMIT_NOFILE, limits)
            eventually(lambda: len(server.processes()) == 2, "the worker is replaced")
            assert server.process_of(THERE) != victim
            assert wire.ask(**step(2))["data"]["observation"]["total"] == 2
        eventually(lambda: descriptors(master) == open_before, "no descriptor is left over")


def test_a_worker_that_cannot_be_started_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    plan = WorkerPlan(
        master=os.getpid(),
        directory=str(tmp_path),
        secret="",
        loader="",
        target="",
        finish_s=0,
        drain_s=0,
        is_exposed=False,
    )

    async def main() -> None:
        page = Page.new(1)
        with socket.socket(socket.AF_UNIX) as private:
            before = descriptors(os.getpid())
            with pytest.raises(FileNotFoundError) as raised:
                await WorkerChild.start(plan, private, page, Register(1))
            assert descriptors(os.getpid()) == before, raised

    asyncio.run(main())
