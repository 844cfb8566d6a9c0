"""Coding environments to test with. Where sandboxes cannot start, these tests say so and are skipped."""

import functools
from collections.abc import Callable, Iterator

import pytest

from envtorch.envs.coding_env import CodingEnv
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.errors import EnvTorchError
from envtorch.sandbox import Policy, report
from tests.providers.conftest import no_engine
from tests.providers.subjects import PYTHON_IMAGE

MEGABYTE = 1024 * 1024
SMALL = Policy(
    memory_bytes=256 * MEGABYTE,
    disk_bytes=16 * MEGABYTE,
    processes=32,
    timeout_s=20.0,
    grace_s=0.5,
    output_bytes=64 * 1024,
    preload=("random",),
)
"""Small limits, so that exceeding them is quick."""

Play = Callable[[], CodingEnv]


@functools.cache
def why_no_sandbox() -> str:
    """Empty where sandboxes start."""
    try:
        found = report()
    except (EnvTorchError, OSError) as error:
        return str(error)
    missing = [f"{name}: {found.protections[name]}" for name in Policy().require if not found.protects(name)]
    return "; ".join(missing)


@pytest.fixture(scope="session")
def sandboxes() -> None:
    if why := why_no_sandbox():
        pytest.skip(f"no sandbox can start here: {why}")


@pytest.fixture
def env(sandboxes: None) -> Iterator[CodingEnv]:
    """An episode in this process, with small limits."""
    with CodingEnv.local(lambda: CodingEnvironment(policy=SMALL)) as env:
        env.reset()
        yield env


@pytest.fixture(params=["sandbox", "smolagents"])
def any_env(request: pytest.FixtureRequest) -> Iterator[CodingEnv]:
    """An episode with either executor."""
    if request.param == "smolagents":
        pytest.importorskip(
            "smolagents", reason="smolagents is not installed: pip install 'envtorch[smolagents]'"
        )
    else:
        request.getfixturevalue("sandboxes")
    with CodingEnv.local(lambda: CodingEnvironment(executor=request.param, policy=SMALL)) as env:
        env.reset()
        yield env


@pytest.fixture(scope="session")
def coding_image() -> str:
    """Built from the sources that are under test; what did not change comes from the engine's cache."""
    from envtorch.providers.build import build_base, build_environment

    build_base("envtorch-base:coding-test")
    build_environment("coding_env", "coding-env:test", base="envtorch-base:coding-test")
    return "coding-env:test"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is not None and (reason := no_engine()) is not None:
        pytest.skip(f"container tests need an engine with {PYTHON_IMAGE}: {reason}")
