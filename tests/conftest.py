"""Fixtures that several folders use."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app
from tests.support import Running, running

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As shells start what runs in their background. The programs that tests start would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def echo_server() -> Iterator[Running]:
    """An echo server with room for 32 sessions."""
    with running(create_app(EchoEnvironment, env_name="echo_env", max_concurrent_envs=32)) as server:
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", default=".artefacts/screenshots", help="where browser tests put them")
    parser.addoption("--every-fault", action="store_true", help="try every fault at every byte")
    parser.addoption("--fault-stride", type=int, default=41, help="try one byte in so many")
    parser.addoption("--fault-seconds", type=float, default=8.0, help="how long to cut at random")
    parser.addoption("--chaos-seconds", type=float, default=180.0, help="how long servers are killed")
    parser.addoption(
        "--chaos-sessions", type=int, default=20_000, help="how many sessions must leave nothing"
    )
    parser.addoption("--train-report", help="where tests of trainers write the rows of their table")
    parser.addoption("--harbor-tasks", help="a directory of tasks in Harbor's format, to be played")
    parser.addoption("--harbor-root", default="host", help="the root file system to play them on")
    parser.addoption("--harbor-grading", help="the plan of those that choose none")
