"""Environments written for OpenEnv, served from their directories, and OpenEnv's clients on them."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envtorch.client import GenericEnvClient
from tests import patient
from tests.alias import environment_files as files
from tests.support import PATIENCE_S


@contextmanager
def served(directory: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "envtorch.cli", "serve", str(directory), "--fd", str(listener.fileno())],
            pass_fds=[listener.fileno()],
        )
    try:
        patient.get(f"http://127.0.0.1:{port}/health").raise_for_status()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("word_env", {"manifest": "name: word_env\napp: server.app:app\n"}),
        ("word_env", {"pyproject": False}),
        ("some-checkout", {}),
        ("only_main", {"app": files.WITH_MAIN, "manifest": "app: [broken"}),
    ],
    ids=["template", "no pyproject", "directory named otherwise", "main() only"],
)
def test_a_directory_is_served(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    directory = files.write(tmp_path / name, **options)  # type: ignore[arg-type]
    with served(directory) as url, GenericEnvClient(url, wire="openenv") as env:
        env.reset(seed=1, episode_id="e")
        env.step({"word": "a"})
        result = env.step({"word": "b"})
        state = env.state()
    assert result.observation["words"] == ["a", "b"]
    assert state == {"episode_id": "e", "step_count": 2}


PLAY = """
import asyncio, sys
import envtorch.compat.openenv
sys.path.insert(0, sys.argv[2])
from word_env import WordAction, WordEnv

def plain(url):
    with WordEnv(base_url=url) as env:
        env.reset()
        result = env.step(WordAction(word="plain"))
        return result.observation.words, env.state().step_count

def sync(url):
    with WordEnv(base_url=url).sync() as env:
        env.reset()
        return env.step(WordAction(word="sync")).observation.words, env.state().step_count

async def awaited(url):
    async with WordEnv(base_url=url) as env:
        await env.reset()
        result = await env.step(WordAction(word="awaited"))
        return result.observation.words, (await env.state()).step_count

async def looked_at(url):
    env = WordEnv(base_url=url)
    env.reset().observation
    words = env.step(WordAction(word="looked at")).observation.words
    try:
        await env.state()
    except RuntimeError as error:
        return words, "blocking" in str(error)

url = sys.argv[1]
print(plain(url), sync(url), asyncio.run(awaited(url)), asyncio.run(looked_at(url)))
"""


def test_openenv_clients_block_and_are_awaited(tmp_path: Path) -> None:
    directory = files.write(tmp_path / "word_env")
    with served(directory) as url:
        done = subprocess.run(
            [sys.executable, "-c", PLAY, url, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ("(['plain'], 1) (['sync'], 1) (['awaited'], 1) (['looked at'], True)")


def test_an_instance_is_refused_as_openenv_refuses_it() -> None:
    from envtorch.compat.http_server import create_app
    from envtorch.envs.echo_env.environment import EchoEnvironment
    from envtorch.envs.echo_env.models import EchoAction, EchoObservation

    with pytest.raises(TypeError, match="must be a callable"):
        create_app(EchoEnvironment(), EchoAction, EchoObservation)  # type: ignore[arg-type]


def test_a_directory_without_an_application_says_what_was_tried(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("application = 1")
    done = subprocess.run(
        [sys.executable, "-m", "envtorch.cli", "serve", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert "neither 'app' nor main()" in " ".join(done.stderr.replace("│", " ").split())
