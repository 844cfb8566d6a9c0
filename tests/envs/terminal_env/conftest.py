"""Terminal environments to test with, in this process and behind a server."""

from collections.abc import Iterator

import pytest

from envtorch import create_app
from envtorch.envs.terminal_env.environment import TerminalEnvironment
from tests.sandbox.roots import HOST, require_host_root
from tests.support import Running, running


class SmallTerminal(TerminalEnvironment):
    """One with small limits."""

    def __init__(self) -> None:
        super().__init__(policy=HOST)


@pytest.fixture(scope="session")
def terminal_server() -> Iterator[Running]:
    require_host_root()
    with running(create_app(SmallTerminal, sessions=16)) as server:
        yield server


@pytest.fixture
def terminal() -> Iterator[TerminalEnvironment]:
    require_host_root()
    environment = SmallTerminal()
    environment.reset()
    yield environment
    environment.close()
