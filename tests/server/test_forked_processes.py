"""A process that an environment's code forked ends where that code returns, and answers nobody."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.server import create_app
from tests.server.environments import Count, Order, Report
from tests.server.forking_steps import (
    AsyncForker,
    Forker,
    ForksWhenBuilt,
    MixedForker,
    QuickForker,
    QuickForksWhenBuilt,
)
from tests.server.isolated import Reckless
from tests.support import PATIENCE_S, Running, eventually, running

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="isolation='process' needs Linux"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

PLACES: dict[str, dict[str, Any]] = {"server": {}, "process": {"isolation": "process"}}


class Client(EnvClient[Order, Report, Count]):
    """Waits for a session as long as a busy machine may need for its process."""

    def __init__(self, url: str) -> None:
        super().__init__(url, connect_timeout_s=PATIENCE_S)


@contextmanager
def serving(source: Any, place: str) -> Iterator[Running]:
    config = ConcurrencyConfig(max_concurrent_envs=4)
    with running(create_app(source, Order, Report, concurrency_config=config, **PLACES[place])) as server:
        yield server


def do(env: Client, order: str) -> Report:
    return env.step(Order(do=order)).observation


@pytest.mark.parametrize("place", PLACES)
class TestChildren:
    @pytest.mark.parametrize("source", [Forker, QuickForker, AsyncForker, MixedForker])
    @pytest.mark.parametrize("end", ["raise", "return"])
    def test_of_a_step_end_and_answer_no_other_step(self, source: Any, end: str, place: str) -> None:
        with serving(source, place) as server, Client(server.url) as env:
            env.reset()
            process = do(env, "process").data
            assert do(env, end).said == f"{end} 2"
            waited = do(env, "await child")
            assert (waited.said, waited.data) == ("await child 3", 1)
            assert [do(env, "process").data for _ in range(5)] == [process] * 5
            assert env.state().step_count == 8

    @pytest.mark.parametrize("source", [ForksWhenBuilt, QuickForksWhenBuilt])
    def test_of_a_constructor_end_and_build_no_session(self, source: Any, place: str) -> None:
        with serving(source, place) as server, Client(server.url) as env:
            env.reset()
            assert do(env, "await child").data == 1
            assert do(env, "process").said == "process 2"


class TestSessionProcesses:
    def test_a_child_forked_between_two_calls_takes_none(self) -> None:
        with serving(AsyncForker, "process") as server, Client(server.url) as env:
            env.reset()
            process = do(env, "process").data
            do(env, "fork later")
            eventually(lambda: bool(do(env, "has forked").data), "the task has forked")
            assert [do(env, "process").data for _ in range(20)] == [process] * 20

    def test_an_answer_to_an_earlier_call_is_not_taken(self) -> None:
        with serving(Reckless, "process") as server, Client(server.url) as env:
            env.reset()
            assert do(env, "answer 1").data == ["answer 1"]
            assert do(env, "x").data == ["answer 1", "x"]
