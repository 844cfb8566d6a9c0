"""The images, built and played on a real engine."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envtorch.envs.echo_env import EchoAction, EchoEnv
from envtorch.errors import ConfigurationError, ProviderFailed
from envtorch.providers.build import build_base, build_environment, make_wheel, requirements
from envtorch.providers.engine import connect
from tests.support import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def echo_image() -> str:
    """Built from the sources that are under test; what did not change comes from the engine's cache."""
    build_base()
    build_environment("echo_env")
    return "echo-env:latest"


@pytest.fixture
def client() -> Iterator[Any]:
    client = connect()
    try:
        yield client
    finally:
        client.close()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_episode_is_played_in_a_container(echo_image: str, client: Any) -> None:
    with EchoEnv.from_docker_image(
        echo_image, pull="never", memory="512m", read_only=True, drop_capabilities=True
    ) as env:
        env.reset(seed=7)
        result = env.step(EchoAction(message="Hello, World!"))
        assert result.observation.echoed_message == "Hello, World!"
        assert result.reward == pytest.approx(1.3)
        assert env.state().step_count == 1


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_episode_is_played_where_there_is_no_network(echo_image: str) -> None:
    with EchoEnv.from_docker_image(echo_image, network="none", pull="never") as env:
        env.reset()
        assert env.step(EchoAction(message="alone")).observation.echoed_message == "alone"


@pytest.mark.docker(podman="its images are OCI ones, which have no health check of their own")
@pytest.mark.timeout(600)
def test_the_image_is_not_root_and_watches_its_own_health(echo_image: str, client: Any) -> None:
    config = client.images.get(echo_image).attrs["Config"]
    assert config["User"] == "10001"
    assert "/health" in " ".join(config["Healthcheck"]["Test"])
    with EchoEnv.from_docker_image(echo_image, pull="never", labels={"probe": "health"}) as env:
        env.reset()
        launch: Any = env._provider
        eventually(
            lambda: launch.provider.status().detail == "health: healthy",
            "the engine finds it healthy",
            PATIENCE_S,
        )


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_build_changes_nothing(echo_image: str) -> None:
    lines: list[str] = []
    assert build_base(on_line=lines.append) == build_base()
    assert not [line for line in lines if "Running in" in line], "every layer is in the cache"


@pytest.mark.docker
@pytest.mark.slow
def test_a_build_that_fails_carries_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\nRUN echo before && false\n")
    with pytest.raises(ProviderFailed, match=r"returned a non-zero code: 1|exit status 1") as caught:
        build_environment(str(tmp_path), "envtorch-failing:1")
    assert "before" in caught.value.logs


def test_what_is_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no environment with a Dockerfile"):
        build_environment(str(tmp_path))


def test_the_wheel_is_whole_and_always_the_same() -> None:
    wheel = make_wheel()
    assert wheel == make_wheel()
    with zipfile.ZipFile(io.BytesIO(wheel)) as unpacked:
        names = unpacked.namelist()
        assert unpacked.testzip() is None
    assert "envtorch/envs/echo_env/Dockerfile" in names
    assert "envtorch/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]


def test_the_requirements_leave_the_extras_out() -> None:
    assert any(line.startswith("pydantic") for line in requirements())
    assert not any(line.startswith(("docker", "kubernetes", "uv>=")) for line in requirements())
