"""OpenEnv's recorded exchanges, and those of a full server, replayed against two workers."""

from collections.abc import Iterator

import pytest

from tests.server.test_transcripts import test_capacity, test_websocket
from tests.server.workers.support import WorkersServer, workers_server

__all__ = ["test_capacity", "test_websocket"]


@pytest.fixture(scope="module")
def simulation() -> Iterator[WorkersServer]:
    build = {"build": "tests.server.test_transcripts:build", "max_concurrent_envs": 2, "mode": "simulation"}
    with workers_server(**build) as server:
        assert server.workers == 2
        yield server
