"""REPLs to test with. Where sandboxes cannot start, these tests say so and are skipped."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from envtorch.envs.repl_env import REPLAction, REPLObservation
from envtorch.server import create_app
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.support import running

from .places import COLOURS, PLACES, Session, make_environment, open_session

Open = Callable[..., Session]


@pytest.fixture(scope="session")
def sandboxes() -> None:
    if why := why_no_sandbox():
        pytest.skip(f"no sandbox can start here: {why}")


@pytest.fixture(scope="module")
def urls(sandboxes: None) -> Iterator[dict[str, Callable[[], str | None]]]:
    """The address of each place, started when it is first asked for."""
    with ExitStack() as stack:
        started: dict[str, str] = {}

        def address(place: str, **options: Any) -> str:
            if place not in started:
                app = create_app(
                    make_environment, REPLAction, REPLObservation, max_concurrent_envs=16, **options
                )
                started[place] = stack.enter_context(running(app)).url
            return started[place]

        yield {
            "local": lambda: None,
            "remote": lambda: address("remote"),
            "isolated": lambda: address("isolated", isolation="process"),
        }


@pytest.fixture(params=[f"{c}-{p}" for p, c in itertools.product(PLACES, COLOURS)])
def opened(request: pytest.FixtureRequest, urls: dict[str, Callable[[], str | None]]) -> Iterator[Open]:
    """Opens sessions of one colour at one place; they are closed afterwards."""
    colour, place = request.param.split("-")
    with ExitStack() as stack:

        def make(**rules: Any) -> Session:
            session = open_session(place, colour, urls[place](), **rules)
            stack.callback(session.close)
            return session

        yield make


@pytest.fixture
def env(opened: Open) -> Session:
    return opened()
