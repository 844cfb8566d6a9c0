"""A Ray cluster of four nodes on this machine."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.nodes import Nodes


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="Ray is not installed: `make test-ray` installs it into .venvs/ray")
    before = dict(os.environ)
    with Nodes(count=3) as nodes:
        os.environ["RAY_ADDRESS"] = nodes.address  # for owners in processes of their own
        yield nodes
    os.environ.clear()
    os.environ.update(before)
