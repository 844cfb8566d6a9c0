"""`envtorch recording list` fits a terminal, and names the file that is no recording."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.cli.exits import Exit
from envtorch.client import GenericEnvClient
from envtorch.server import create_app
from tests.recording.environments import Walk
from tests.support import PATIENCE_S, running

ENVTORCH = [sys.executable, "-m", "envtorch.cli", "recording"]


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    return subprocess.run(
        [*ENVTORCH, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, env=environ
    )


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recordings")
    app = create_app(Walk, max_concurrent_envs=8, record=directory)
    with running(app) as server, GenericEnvClient(server.url) as env:
        env.reset(seed=2_147_483_647)
        for _ in range(12):
            env.step({"by": 1})
        (copy,) = env.fork(1)
        with copy:
            copy.step({"by": 2})
    return directory


def test_the_list_fits_eighty_columns(recordings: Path) -> None:
    done = run("list", recordings)
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if line.strip()]
    assert max(map(len, table)) <= 80
    assert "2147483647" in done.stdout, "no value is cut"
    assert "1@12" in done.stdout, "a fork says where it comes from"


def test_the_list_names_the_file_that_is_no_recording(recordings: Path) -> None:
    stray = recordings / "notes.jsonl"
    stray.write_text('{"todo": "nothing"}\n')
    try:
        done, alone = run("list", recordings), run("list", stray)
    finally:
        stray.unlink()
    assert done.returncode == Exit.FOUND_WANTING
    assert f"{stray} is no recording" in done.stderr
    assert "2147483647" in done.stdout, "the others are listed"
    assert alone.returncode == Exit.MISUSED
    assert f"{stray} is no recording" in alone.stderr


def test_an_episode_that_is_not_there_is_answered_with_those_that_are(recordings: Path) -> None:
    done = run("show", recordings, "--episode", "99")
    assert done.returncode == Exit.MISUSED
    assert "no episode 99: it has 2, from 1 to 2" in done.stderr


def test_replay_serves_its_own_target_with_room_for_forks(recordings: Path) -> None:
    command = [*ENVTORCH[:3], "replay", str(recordings), "--target", "tests.recording.environments:Walk"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 episodes, 14 calls, no divergence" in done.stdout
