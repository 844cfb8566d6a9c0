"""Recordings as the page shows them, without a browser."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from envtorch.recording import Recording, find_recordings
from envtorch.server import create_app
from envtorch.web.recordings import entry_of, title_of
from tests.web.environments import Walker

RIGHT = {"direction": "right"}


@pytest.fixture
def recorded(tmp_path: Path) -> Recording:
    """An episode of two steps, one of them failing."""
    with TestClient(create_app(Walker, env_name="walk_env", record=tmp_path)) as client:
        client.post("/reset", json={"seed": 3, "start": 0})
        client.post("/step", json={"action": {"direction": "left", "by": 3}})
        client.post("/step", json={"action": RIGHT})
    (path,) = find_recordings(tmp_path)
    return Recording.open(path)


def test_a_recording_is_shown_as_live_play_is(recorded: Recording) -> None:
    (episode,) = recorded.episodes
    entries = [entry_of(moment) for moment in recorded.moments(episode)]
    assert [entry.call for entry in entries] == ["reset", "step", "step"]
    assert entries[0].sent == {"seed": 3, "start": 0}
    assert entries[1].error == "EXECUTION_ERROR: there is a wall to the left"
    assert (entries[2].sent, entries[2].observation["position"], entries[2].reward) == (RIGHT, 1, 0.1)


def test_an_episode_is_named_by_what_came_of_it(recorded: Recording) -> None:
    assert title_of(recorded.episodes[0]) == "Episode 1: 2 steps, reward 0.1, seed 3, 1 error"
