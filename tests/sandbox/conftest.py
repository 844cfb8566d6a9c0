"""Sandboxes to test with. On a machine that has none, these tests say so and are skipped."""

import sys
from collections.abc import Iterator

import pytest

from envtorch.sandbox import Policy, Sandbox

if sys.platform != "linux":
    pytest.skip("the kernel sandbox needs Linux", allow_module_level=True)

MEGABYTE = 1024 * 1024


@pytest.fixture(scope="session")
def policy() -> Policy:
    """Small limits, so that exceeding them is quick."""
    return Policy(
        memory_bytes=256 * MEGABYTE, disk_bytes=8 * MEGABYTE, processes=32, timeout_s=20.0, grace_s=0.5
    )


@pytest.fixture
def sandbox(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy) as made:
        yield made


@pytest.fixture
def forkable(sandbox: Sandbox) -> Sandbox:
    why = sandbox.report().protections["fork"]
    if why != "on":
        pytest.skip(f"sandboxes cannot be forked here: {why}")
    return sandbox
