"""Servers of dice for one test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.recovery.servers import DICE, Killable, start_dice


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Killable]]:
    """Starts servers that write their steps to one log."""
    started: list[Killable] = []

    def start(image: str = DICE, *, port: int | None = None, **env_vars: str) -> Killable:
        started.append(start_dice(tmp_path / "log", image, port=port, env_vars=env_vars))
        return started[-1]

    yield start
    for server in started:
        server.close()
