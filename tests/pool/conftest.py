"""Fixtures of several files here."""

import pytest

from tests.pool.test_pool_failures import Crowded
from tests.support import Running


@pytest.fixture
def crowded(echo_server: Running) -> type[Crowded]:
    """A provider whose cluster has room, until it has none."""
    Crowded.url, Crowded.made = echo_server.url, []
    Crowded.has_room.set()
    return Crowded
