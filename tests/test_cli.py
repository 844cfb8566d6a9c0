"""The command line, run as a person runs it."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support import eventually

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]


def test_the_demo_plays_three_episodes_and_leaves_nothing_running() -> None:
    done = subprocess.run([*ENVTORCH, "demo"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "3 episodes, 9 steps, return 11.7" in done.stdout
    port = done.stdout.split("http://127.0.0.1:")[1].split()[0]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")


@pytest.mark.parametrize("target", ["echo_env", "envtorch.envs.echo_env.environment:EchoEnvironment"])
def test_serve_says_where_it_listens_and_stops_when_told(target: str) -> None:
    server = subprocess.Popen([*ENVTORCH, "serve", target, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = server.stderr.readline().split(" on ")[1].split()[0]

    def healthy() -> bool:
        try:
            return httpx.get(url + "/health").status_code == 200
        except httpx.TransportError:
            return False

    eventually(healthy, "the server is up", timeout_s=30)
    server.terminate()
    assert server.wait(timeout=20) in (0, -15)
    server.stderr.close()


@pytest.mark.parametrize(
    ("target", "hint"),
    [("nope", "names nothing"), ("no.module:app", "no module"), ("envtorch.env:nope", "has no 'nope'")],
)
def test_a_target_that_is_not_there_says_so(target: str, hint: str) -> None:
    done = subprocess.run([*ENVTORCH, "serve", target], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert hint in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_the_example_runs() -> None:
    example = Path(__file__).parents[1] / "examples/first_environment.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].startswith("in this process:")
    assert len({line.split(":")[1].strip() for line in done.stdout.strip().split("\n")}) == 1
