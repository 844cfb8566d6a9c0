"""Containers on a real engine: each option has its effect, each failure its sentence."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envtorch.errors import ConfigurationError, EngineUnavailable, ImageUnavailable, ServerExited
from envtorch.providers.docker import DockerOptions, LocalDockerProvider, container_settings
from envtorch.providers.engine import Progress, connect
from envtorch.providers.ownership import OWNER_LABEL, OwnerTag
from envtorch.providers.provider_base import Phase
from envtorch.providers.sweeper import sweep
from envtorch.testing import PROBE_COMMAND
from tests.providers.registry import engine_that_pulls_like, registry
from tests.providers.small_engine import small_engine, unable
from tests.providers.subjects import PYTHON_IMAGE
from tests.support import eventually

needs_engine = pytest.mark.docker
needs_plain_registry = pytest.mark.docker(podman="it takes only registries with TLS, unless configured")


@pytest.fixture
def client() -> Iterator[Any]:
    client = connect()
    try:
        yield client
    finally:
        client.close()


def inspect(client: Any, provider: LocalDockerProvider) -> dict[str, Any]:
    server: Any = provider._server
    attributes: dict[str, Any] = client.api.inspect_container(server.container_id)
    return attributes


@pytest.mark.docker(podman="it spells the same settings its own way; the next test sees their effects")
def test_every_limit_reaches_the_engine(client: Any, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from outside")
    with LocalDockerProvider() as provider:
        provider.start_container(
            PYTHON_IMAGE,
            command=PROBE_COMMAND,
            memory="96m",
            cpus=0.5,
            pids=40,
            read_only=True,
            user="65534",
            labels={"team": "rl"},
            volumes={str(tmp_path): "/data:ro"},
            tmpfs={"/scratch": "size=1m"},
            drop_capabilities=True,
            health_command=["true"],
        )
        found = inspect(client, provider)
    host, config = found["HostConfig"], found["Config"]
    assert host["Memory"] == host["MemorySwap"] == 96 * 1024 * 1024
    assert host["NanoCpus"] == 500_000_000
    assert host["PidsLimit"] == 40
    assert host["ReadonlyRootfs"] is True
    assert set(host["Tmpfs"]) == {"/tmp", "/scratch"}
    assert host["Binds"] == [f"{tmp_path}:/data:ro"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["PortBindings"]["8000/tcp"][0]["HostIp"] == "127.0.0.1"
    assert config["User"] == "65534"
    assert config["Labels"]["team"] == "rl"
    assert config["Labels"][OWNER_LABEL] == str(OwnerTag.current())
    assert config["Healthcheck"]["Test"] == ["CMD", "true"]


def run_inside(**options: Any) -> str:
    """What a program prints in a container with `options`."""
    with LocalDockerProvider() as provider:
        try:
            url = provider.start_container(PYTHON_IMAGE, **options)
            provider.wait_for_ready(url)
        except Exception as error:
            return str(error)
    raise AssertionError("the program was to end by itself")


LOOK_AROUND = """
import glob, os, sys
def limit(*names):
    for name in names:
        for place in ("/sys/fs/cgroup/*/", "/sys/fs/cgroup/"):
            for path in glob.glob(place + name):
                return open(path).read().split()[0]
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(int(status["CapEff"], 16), status["NoNewPrivs"].strip(), os.getuid(), os.environ["A"])
print(limit("memory.limit_in_bytes", "memory.max"), limit("pids.max"), open("/data/note").read())
sys.exit(5)
"""


@needs_engine
def test_every_limit_holds_inside(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("from outside")
    (tmp_path / "note").chmod(0o644)
    tmp_path.chmod(0o755)
    said = run_inside(
        command=["python3", "-c", LOOK_AROUND],
        env_vars={"A": "b"},
        memory="96m",
        pids=40,
        user="65534",
        volumes={str(tmp_path): "/data:ro"},
        drop_capabilities=True,
    )
    assert "0 1 65534 b" in said
    assert f"{96 * 1024 * 1024} 40 from outside" in said


@needs_engine
def test_a_read_only_root_cannot_be_written_but_tmp_can() -> None:
    program = "open('/tmp/a', 'w').write('x'); print('tmp ok', flush=True); open('/b', 'w')"
    said = run_inside(command=["python3", "-c", program], read_only=True)
    assert "tmp ok" in said
    assert "Read-only file system" in said


@pytest.mark.docker(podman="it does not tell why a container was killed")
def test_memory_beyond_the_limit_is_told_as_such() -> None:
    said = run_inside(command=["python3", "-c", "x = bytearray(300 * 1024 * 1024)"], memory="32m")
    assert "code 137" in said
    assert "out of memory" in said


@needs_engine
def test_without_a_network_nothing_outside_can_be_reached() -> None:
    program = "import socket; print([name for _, name in socket.if_nameindex()]); raise SystemExit(4)"
    said = run_inside(command=["python3", "-c", program], network="none")
    assert "['lo']" in said


@pytest.mark.docker(podman="its health checks need timers of systemd")
def test_the_engines_own_health_check_is_told() -> None:
    with LocalDockerProvider() as provider:
        url = provider.start_container(
            PYTHON_IMAGE, command=PROBE_COMMAND, health_command=["true"], health_interval_s=0.2
        )
        provider.wait_for_ready(url)
        eventually(lambda: provider.status().detail == "health: healthy", "the engine finds it healthy")


def start_in_vain(image: str, seen: list[Progress], **options: Any) -> None:
    """Start an image whose only file cannot be run: it is fetched, and ends at once or a moment later."""
    with LocalDockerProvider() as provider, pytest.raises(ServerExited, match="hello"):
        provider.wait_for_ready(provider.start_container(image, on_progress=seen.append, **options))


@needs_plain_registry
def test_an_image_is_pulled_with_progress_and_only_when_it_is_missing(client: Any) -> None:
    with registry() as host:
        image = f"{host}/one:1"
        seen: list[Progress] = []
        start_in_vain(image, seen)
        assert "Pull complete" in {progress.status for progress in seen if progress.layer}
        seen.clear()
        start_in_vain(image, seen)
        assert seen == []
        start_in_vain(image, seen, pull="always")
        assert seen
        client.images.remove(image, force=True)


@needs_plain_registry
def test_a_registry_that_refuses_is_told() -> None:
    with registry(denies=True) as host, LocalDockerProvider() as provider:
        with pytest.raises(ImageUnavailable, match="wants credentials"):
            provider.start_container(f"{host}/private:1")
        assert provider.status().phase is Phase.ABSENT


@needs_engine
def test_a_registry_that_is_not_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with LocalDockerProvider() as provider, pytest.raises(ImageUnavailable, match="refused the connection"):
        provider.start_container(f"127.0.0.1:{port}/one:1")


@needs_engine
def test_an_image_that_may_not_be_pulled_is_told() -> None:
    with LocalDockerProvider() as provider, pytest.raises(ImageUnavailable, match="pull='never'"):
        provider.start_container("envtorch-no-such-image:1", pull="never")


FULL = "write /var/lib/docker/tmp/GetImageBlob81: no space left on device"


@pytest.mark.skipif(unable() is not None, reason=str(unable()))
def test_a_disk_that_runs_full_during_a_pull_is_told_by_a_real_engine() -> None:
    with small_engine(megabytes=16) as (address, image), LocalDockerProvider(address) as provider:
        with pytest.raises(ImageUnavailable, match="the engine's disk is full") as caught:
            provider.start_container(image, pull_timeout_s=60)
        assert "\n" not in str(caught.value)
        assert provider.status().phase is Phase.ABSENT
        assert provider._client.api.containers(all=True) == []


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"status": "Pulling from library/one", "id": "1"},
        {"errorDetail": {"message": FULL}, "error": FULL},
    ]
    with (
        engine_that_pulls_like(tmp_path / "engine.sock", events) as address,
        LocalDockerProvider(address) as provider,
    ):
        with pytest.raises(ImageUnavailable, match="the engine's disk is full"):
            provider.start_container("one:1")
        assert provider.status().phase is Phase.ABSENT


def test_a_pull_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    events = [{"status": "Downloading", "id": "1", "progressDetail": {"current": 1, "total": 9}}]
    with (
        engine_that_pulls_like(tmp_path / "engine.sock", events) as address,
        LocalDockerProvider(address) as provider,
        pytest.raises(ImageUnavailable, match="not pulled within 0 s"),
    ):
        provider.start_container("one:1", pull_timeout_s=0.0)


def test_no_engine_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="start Docker or Podman, or set DOCKER_HOST") as caught:
        LocalDockerProvider(f"unix://{tmp_path}/nobody.sock")
    assert "No such file or directory" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_are_made_without_an_engine() -> None:
    settings = container_settings("lib/echo:1", DockerOptions(network="none"), None, {"A": "b"})
    assert settings["network_mode"] == "none"
    assert settings["ports"] == {}
    assert settings["name"].startswith("envtorch-echo-")
    with pytest.raises(ConfigurationError, match="absolute place"):
        container_settings("echo", DockerOptions(volumes={"/a": "b"}), None, {})


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("pulling", marks=needs_plain_registry),
        *(pytest.param(stage, marks=needs_engine) for stage in ("created", "started", "stopping")),
    ],
)
def test_an_owner_killed_at_any_stage_leaves_nothing_after_a_sweep(stage: str, client: Any) -> None:
    with registry() as host:
        image = f"{host}/one:1" if stage == "pulling" else PYTHON_IMAGE
        owner = subprocess.Popen(
            [sys.executable, "-m", "tests.providers.doomed_owner", stage, image],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert owner.stdout is not None
        with owner.stdout as said:
            assert said.readline().strip() == stage
        tag = str(OwnerTag.parse(_tag_of(owner.pid)))
        owner.kill()
        owner.wait()
        sweep()
        labelled = client.api.containers(all=True, filters={"label": f"{OWNER_LABEL}={tag}"})
        eventually(lambda: not _left(client, tag), "the sweep, this one's or another's, is done")
        assert stage != "pulling" or not labelled


def _left(client: Any, tag: str) -> list[Any]:
    found: list[Any] = client.api.containers(all=True, filters={"label": f"{OWNER_LABEL}={tag}"})
    return found


def _tag_of(pid: int) -> str:
    here = OwnerTag.current()
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{here.host}.{pid}.{started}"


@needs_engine
def test_a_container_that_somebody_else_removed_is_noticed(client: Any) -> None:
    with LocalDockerProvider() as provider:
        provider.wait_for_ready(provider.start_container(PYTHON_IMAGE, command=PROBE_COMMAND))
        server: Any = provider._server
        client.api.remove_container(server.container_id, force=True)
        assert provider.status().phase is Phase.EXITED
        assert "removed by somebody else" in provider.status().detail
