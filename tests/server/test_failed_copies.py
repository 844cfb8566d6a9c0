"""`isolation="process"`: when one copy of a fork does not start, nothing is left of the others."""

import os
import sys
from pathlib import Path

import pytest

from envtorch import ConcurrencyConfig, EnvClient
from envtorch.errors import InternalError
from envtorch.server import create_app
from tests.server.environments import Count, Order, Report
from tests.server.isolated import SecondCopyBabbles, SecondCopyDies
from tests.support import PATIENCE_S, eventually, running

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes of sessions need Linux"
)


class Client(EnvClient[Order, Report, Count]): ...


def descriptors() -> int:
    """How many this process has, with the server in it."""
    return len(os.listdir("/proc/self/fd"))


def test_copies_beside_one_that_did_not_start_are_closed_and_the_reason_is_told(tmp_path: Path) -> None:
    notes = tmp_path / "closed"
    notes.touch()
    config = ConcurrencyConfig(max_concurrent_envs=8)
    app = create_app(SecondCopyDies, Order, Report, concurrency_config=config, isolation="process")
    with running(app) as server, Client(server.url, connect_timeout_s=PATIENCE_S) as env:
        env.reset()
        env.step(Order(do=f"notes {notes}"))
        before = descriptors()
        for _ in range(3):
            env.step(Order(do="arm"))
            with pytest.raises(InternalError, match=r"did not start: its process ended before"):
                env.fork(4)
        eventually(lambda: len(notes.read_text().split()) == 9, "the copies that started are closed")
        eventually(lambda: descriptors() == before, "no descriptor is left of them")
        assert server.sessions.active == 1
        assert len(set(notes.read_text().split())) == 9


@pytest.mark.parametrize("babble", ["nonsense", "hello nonsense", "hello"])
def test_a_copy_whose_messages_cannot_be_read_ends_the_fork_at_once(babble: str, tmp_path: Path) -> None:
    notes = tmp_path / "closed"
    notes.touch()
    config = ConcurrencyConfig(max_concurrent_envs=8)
    app = create_app(SecondCopyBabbles, Order, Report, concurrency_config=config, isolation="process")
    with running(app) as server, Client(server.url, connect_timeout_s=PATIENCE_S) as env:
        env.reset()
        env.step(Order(do=f"notes {notes}"))
        env.step(Order(do=f"babble {babble}"))
        before = descriptors()
        env.step(Order(do="arm"))
        with pytest.raises(InternalError, match="a copy of the environment's process did not start"):
            env.fork(4)
        eventually(lambda: len(notes.read_text().split()) == 3, "the copies that started are closed")
        eventually(lambda: descriptors() == before, "no descriptor is left of them")
        assert server.sessions.active == 1
        assert env.step(Order(do="process")).observation.said == "process"
