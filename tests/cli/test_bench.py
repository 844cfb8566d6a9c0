"""`envtorch bench`: what it counts really happened."""

import json
import subprocess
import sys

import pytest

from envtorch.cli.benching import Load, Measured, measure
from tests.support import PATIENCE_S, Running

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


def test_steps_are_counted_as_the_server_counts_them(echo_server: Running) -> None:
    before = echo_server.sessions.meter.steps
    load = Load.of(echo_server.url, token=None, wire="json", action={"message": "hi"}, seed=1)
    run = measure(load, 4, 0.3)
    assert run.failed == 0
    assert run.steps == echo_server.sessions.meter.steps - before
    assert 0 < run.p50_s <= run.p99_s
    assert run.seconds >= 0.3


def test_quantiles() -> None:
    run = Measured(1, seconds=2.0, latencies=[float(n) for n in range(100)])
    assert (run.p50_s, run.p99_s, run.steps_per_s) == (50.0, 99.0, 50.0)
    assert Measured(1).p99_s == 0.0


@pytest.mark.slow
def test_for_programs_and_for_people(echo_server: Running) -> None:
    command = [*ENVTORCH, "bench", echo_server.url, "--sessions", "1,2", "--seconds", "0.2"]
    told = json.loads(subprocess.check_output([*command, "--json"], text=True, timeout=PATIENCE_S))
    assert [run["sessions"] for run in told["runs"]] == [1, 2]
    assert all(run["steps"] > 0 and run["failed"] == 0 for run in told["runs"])
    shown = subprocess.check_output(command, text=True, timeout=PATIENCE_S)
    assert "steps/s" in shown
    assert "p99 ms" in shown


def test_actions_that_fail_are_told_and_fail_the_run(echo_server: Running) -> None:
    command = [
        *ENVTORCH,
        "bench",
        echo_server.url,
        "--sessions",
        "1",
        "--seconds",
        "0.1",
        "--action",
        '{"no": 1}',
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "The first failure: InvalidAction" in done.stdout
    assert "--action" in done.stdout
