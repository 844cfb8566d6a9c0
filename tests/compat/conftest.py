"""Fixtures of the tests that need OpenEnv 0.10.0 beside us."""

from collections.abc import Iterator

import pytest

from .processes import OPENENV_BIN, ours, theirs


@pytest.fixture(scope="session")
def openenv() -> None:
    """OpenEnv is there to be compared with; without it the test is skipped."""
    if not (OPENENV_BIN / "openenv").exists():
        pytest.skip("OpenEnv 0.10.0 is not installed beside us: `make compat` does that")


@pytest.fixture(scope="module")
def our_server(openenv: None) -> Iterator[str]:
    with ours() as url:
        yield url


@pytest.fixture(scope="module")
def openenv_server(openenv: None) -> Iterator[str]:
    with theirs() as url:
        yield url
