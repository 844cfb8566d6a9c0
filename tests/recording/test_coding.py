"""Recordings of real code in real sandboxes: they replay exactly, and planted chance is found at its step."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envtorch import create_app
from envtorch.envs.coding_env import CodeAction, CodingEnv
from envtorch.envs.coding_env.environment import CodingEnvironment
from envtorch.recording import Recording, find_recordings
from envtorch.testing import check_replay
from tests.envs.coding_env.conftest import why_no_sandbox
from tests.support import Running, running

pytestmark = pytest.mark.skipif(
    bool(why_no_sandbox()), reason=f"no sandbox can start here: {why_no_sandbox()}"
)

EPISODES = 200

SCRIPTS = (
    ("import random\ndraws = [random.random() for _ in range(3)]", "draws", "sum(draws) / len(draws)"),
    ("def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)", "fib({n} % 15)", "print('ok')"),
    ("open('notes.txt', 'w').write('{n}\\n' * 3)", "open('notes.txt').read()", "1 / 0"),
    ("import random\nrandom.shuffle(cards := list(range({n} % 9 + 2)))\ncards", "missing_name", "len(cards)"),
)


@contextmanager
def coding_server(directory: Path | None = None) -> Iterator[Running]:
    with running(
        create_app(CodingEnvironment, env_name="coding_env", max_concurrent_envs=8, record=directory)
    ) as s:
        yield s


def play(url: str, episodes: int, *, last: str | None = None) -> None:
    """Scripted episodes, one after another; in the last one, an action of its own before the end."""
    with CodingEnv(url) as env:
        for n in range(episodes):
            env.reset(seed=n)
            script = [code.replace("{n}", str(n)) for code in SCRIPTS[n % len(SCRIPTS)]]
            if last is not None and n == episodes - 1:
                script.insert(2, last)
            for code in script:
                env.step(CodeAction(code=code))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_coding_episodes_replay_without_a_divergence(tmp_path: Path) -> None:
    with coding_server(tmp_path) as server:
        play(server.url, EPISODES)
    recording = Recording.open(find_recordings(tmp_path)[0])
    assert len(recording.episodes) == EPISODES
    assert all(episode.ended and episode.complete for episode in recording.episodes)
    with coding_server() as server:
        found = check_replay(recording, server.url)
    assert found.first is None
    assert (found.episodes, found.moments, found.skipped) == (EPISODES, EPISODES * 4, [])


def test_planted_chance_is_found_at_its_step(tmp_path: Path) -> None:
    with coding_server(tmp_path) as server:
        play(server.url, 8, last="import os\nint.from_bytes(os.urandom(16))")
    with coding_server() as server:
        found = check_replay(Recording.open(find_recordings(tmp_path)[0]), server.url)
    (first,) = found.divergences
    assert (first.episode, first.moment.step) == (8, 3)
    assert [difference.path for difference in first.differences] == ["observation.value"]
