"""The command line, run as a person runs it."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from envtorch.envs.echo_env import EchoEnv
from envtorch.errors import CapacityReached
from tests import patient
from tests.support import PATIENCE_S, eventually

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


def test_the_demo_plays_three_episodes_and_leaves_nothing_running() -> None:
    done = subprocess.run([*ENVTORCH, "demo"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "3 episodes, 9 steps, return 11.7" in done.stdout
    port = done.stdout.split("http://127.0.0.1:")[1].split()[0]
    with pytest.raises(httpx.ConnectError):
        patient.get(f"http://127.0.0.1:{port}/health")


@pytest.mark.parametrize("target", ["echo_env", "envtorch.envs.echo_env.environment:EchoEnvironment"])
def test_serve_says_where_it_listens_and_stops_when_told(target: str) -> None:
    server = subprocess.Popen([*ENVTORCH, "serve", target, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = server.stderr.readline().split(" on ")[1].split()[0]

    def healthy() -> bool:
        try:
            return patient.get(url + "/health").status_code == 200
        except httpx.TransportError:
            return False

    eventually(healthy, "the server is up", timeout_s=PATIENCE_S)
    server.terminate()
    assert server.wait(timeout=PATIENCE_S) in (0, -15)
    server.stderr.close()


@pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
def test_workers_serve_together_and_stop_together() -> None:
    command = [*ENVTORCH, "serve", "echo_env", "--port", "0", "--workers", "2", "--isolation", "process"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = server.stderr.readline()
    assert "with 2 workers" in said
    url = said.split(" on ")[1].split()[0]
    with patient.Client(base_url=url) as http:
        assert http.post("/reset", json={"seed": 1}).status_code == 200
        assert http.get("/metrics").text.count("envtorch_sessions_opened_total{") == 2
    server.terminate()
    assert server.wait(timeout=PATIENCE_S) == 0
    server.stderr.close()


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux"))]
)
def test_serve_makes_room_for_as_many_sessions_as_it_is_told(workers: int) -> None:
    target = "envtorch.envs.echo_env.environment:EchoEnvironment"
    command = [*ENVTORCH, "serve", target, "--port", "0", "--sessions", "3", "--workers", str(workers)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = server.stderr.readline().split(" on ")[1].split()[0]
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(EchoEnv(url, connect_timeout_s=PATIENCE_S)).reset()
        with pytest.raises(CapacityReached, match="3"):
            EchoEnv(url).connect()
    server.terminate()
    assert server.wait(timeout=PATIENCE_S) in (0, -15)
    server.stderr.close()


def test_room_is_refused_where_environments_cannot_live_side_by_side() -> None:
    command = [*ENVTORCH, "serve", "tests.cli.environments:OneMan", "--sessions", "2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "SUPPORTS_CONCURRENT_SESSIONS" in done.stderr


def test_workers_say_what_they_cannot_serve() -> None:
    command = [*ENVTORCH, "serve", "nope", "--workers", "2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, "names nothing" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("target", "hint"),
    [("nope", "names nothing"), ("no.module:app", "no module"), ("envtorch.env:nope", "has no 'nope'")],
)
def test_a_target_that_is_not_there_says_so(target: str, hint: str) -> None:
    done = subprocess.run(
        [*ENVTORCH, "serve", target, "--port", "0"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert hint in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_the_example_runs() -> None:
    example = Path(__file__).parents[1] / "examples/first_environment.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].startswith("in this process:")
    assert len({line.split(":")[1].strip() for line in done.stdout.strip().split("\n")}) == 1


def test_k8s_render_prints_what_kubectl_takes() -> None:
    command = [*ENVTORCH, "k8s", "render", "echo-env:latest", "--replicas", "2", "--memory", "512Mi"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    manifests = {manifest["kind"]: manifest for manifest in yaml.safe_load_all(done.stdout)}
    assert list(manifests) == ["Service", "NetworkPolicy", "StatefulSet", "PodDisruptionBudget"]
    assert manifests["StatefulSet"]["spec"]["replicas"] == 2


def test_k8s_render_writes_a_kustomize_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    command = [*ENVTORCH, "k8s", "render", "echo-env:latest", "--max-replicas", "8", "--kustomize", str(base)]
    for _ in range(2):  # again, over the first one
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
    named = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    assert {yaml.safe_load((base / name).read_text())["kind"].lower() + ".yaml" for name in named} == set(
        named
    )
    assert "container grade" in (base / "README.md").read_text()
    assert f"kubectl apply -k {base}" in done.stderr


def test_k8s_render_refuses_a_quantity_that_is_none() -> None:
    command = [*ENVTORCH, "k8s", "render", "echo-env:latest", "--memory", "lots"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "512Mi" in done.stderr


def test_build_refuses_what_is_no_environment() -> None:
    done = subprocess.run([*ENVTORCH, "build", "nothing"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "no environment with a Dockerfile" in done.stderr


def test_sweep_removes_the_directory_of_a_dead_owner(tmp_path: Path) -> None:
    make = "from envtorch.providers.sweeper import owned_directory; print(owned_directory('probe'))"
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    left = subprocess.check_output([sys.executable, "-c", make], text=True, env=environ).strip()
    assert Path(left).is_dir()
    done = subprocess.run(
        [*ENVTORCH, "sweep", "--json"], capture_output=True, text=True, timeout=PATIENCE_S, env=environ
    )
    assert done.returncode == 0, done.stderr
    assert left in done.stdout
    assert not Path(left).exists()
