"""Servers of two workers that several files use."""

from collections.abc import Iterator

import pytest

from tests.server.workers.support import WorkersServer, workers_server


@pytest.fixture(scope="module")
def two() -> Iterator[WorkersServer]:
    """Two workers with room for sixteen sessions."""
    with workers_server() as server:
        assert server.workers == 2
        yield server
