"""`envtorch serve --record`, as a person runs it: with workers, and replayed; and `--reload`."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from envtorch import GenericEnvClient
from envtorch.recording import Recording, find_recordings
from tests import patient
from tests.support import PATIENCE_S, eventually

ENVTORCH = [sys.executable, "-m", "envtorch.cli"]
ROOT = Path(__file__).parents[2]


@contextmanager
def serving(*arguments: str, cwd: Path = ROOT) -> Iterator[str]:
    command = [*ENVTORCH, "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=PATIENCE_S)


def healthy(url: str) -> bool:
    try:
        return patient.get(url + "/health").status_code == 200
    except httpx.TransportError:
        return False


def record(target: str, directory: Path, *options: str, sessions: int) -> None:
    with serving(target, "--record", str(directory), *options) as url:
        eventually(lambda: healthy(url), "the server is up", PATIENCE_S)
        for seed in range(sessions):
            with GenericEnvClient(url, connect_timeout_s=PATIENCE_S) as env:
                env.reset(seed=seed)
                for _ in range(4):
                    env.step({"by": 1})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_each_write_a_file(tmp_path: Path) -> None:
    record("tests.recording.served:app", tmp_path, "--workers", "2", sessions=4)
    recordings = [Recording.open(path) for path in find_recordings(tmp_path)]
    episodes = [episode for recording in recordings for episode in recording.episodes]
    assert sorted(str(episode.seed) for episode in episodes) == ["0", "1", "2", "3"]
    assert all(episode.steps == 4 and episode.ended for episode in episodes)
    assert len({episode.id for episode in episodes}) == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_replay_from_the_command_line(tmp_path: Path) -> None:
    record("tests.recording.environments:Moody", tmp_path, sessions=2)
    replay = [*ENVTORCH, "replay", str(tmp_path), "--target", "tests.recording.environments:Moody"]
    done = subprocess.run(replay, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    assert "2 episodes, 8 calls, 2 of the episodes diverged" in done.stdout
    assert "The first divergence is in episode 1, step 3:" in done.stdout
    assert "observation.luck" in done.stdout
    ignoring = [*replay, "--ignore", "observation.luck", "--ignore", "reward", "--json"]
    told = json.loads(subprocess.check_output(ignoring, text=True, cwd=ROOT, timeout=PATIENCE_S))
    assert (told["ok"], told["episodes"], told["calls"]) == (True, 2, 10)


SOURCE = """
from envtorch import Action, Environment, Observation, State
class Say(Observation):
    text: str = ""
class Speaker(Environment[Action, Say, State]):
    def reset(self) -> Say:
        return Say(text="{word}")
    def step(self, action: Action) -> Say:
        return Say(text="{word}")
    @property
    def state(self) -> State:
        return State()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_reload_serves_what_was_written_last(tmp_path: Path) -> None:
    module = tmp_path / "speaker.py"
    module.write_text(SOURCE.replace("{word}", "before"))

    def said(url: str) -> str | None:
        try:
            return str(patient.post(url + "/reset", json={}).json()["observation"]["text"])
        except (httpx.TransportError, KeyError, ValueError):
            return None

    (tmp_path / "app.py").write_text(
        "from envtorch import create_app\nfrom speaker import Speaker\napp = create_app(Speaker)"
    )
    with serving(".", "--reload", cwd=tmp_path) as url:
        eventually(lambda: said(url) == "before", "it serves", PATIENCE_S)
        module.write_text(SOURCE.replace("{word}", "after"))
        eventually(lambda: said(url) == "after", "it serves what was written", PATIENCE_S)
