"""Recordings played again: the same comes out the same, and what does not is found where it happens."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from envtorch import GenericEnvClient, create_app
from envtorch.errors import EnvironmentFailed
from envtorch.recording import Comparison, Recording
from envtorch.testing import check_replay
from envtorch.tools import CallToolAction, CallToolObservation
from tests import patient
from tests.recording.environments import Gallery, Moody, Walk
from tests.recording.test_doors import recorded, the_recording
from tests.support import PATIENCE_S, running
from tests.tools.environments import Basket


def record_walks(environment: Any, directory: Path, *, wire: Any = "json", forks: bool = False) -> Recording:
    with recorded(environment, directory) as server:
        for seed in range(4):
            with GenericEnvClient(server.url, wire=wire) as env:
                env.reset(seed=seed)
                for by in (1, 2, 1, 2, 1):
                    env.step({"by": by})
                if forks:
                    (copy,) = env.fork(1)
                    with copy:
                        copy.step({"by": 1})
                    env.step({"by": 2})
    return the_recording(directory)


@pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
def test_the_same_comes_out_the_same(wire: str, tmp_path: Path) -> None:
    recording = record_walks(Walk, tmp_path, wire=wire)
    with running(create_app(Walk, max_concurrent_envs=4)) as server:
        found = check_replay(recording, server.url)
    assert found.ok, found.first
    assert (found.episodes, found.moments) == (4, 24)
    assert check_replay(str(recording.path), Walk).ok, "in this process, without a server"


def test_forks_are_forked_again(tmp_path: Path) -> None:
    recording = record_walks(Walk, tmp_path, forks=True)
    with running(create_app(Walk, max_concurrent_envs=4)) as server:
        found = check_replay(recording, server.url)
    assert found.ok, found.first
    assert (found.episodes, found.moments) == (8, 32)


def without_lines(recording: Recording, *missing: tuple[int, str]) -> Recording:
    """A recording without the first line of that kind of these episodes, which says so."""
    lines = [json.loads(line) for line in recording.path.read_text().splitlines()]
    for episode, kind in missing:
        gone = next(line for line in lines if line.get("episode") == episode and line["kind"] == kind)
        lines[lines.index(gone)] = {"kind": "lost", "count": 1, "episodes": [episode]}
    recording.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Recording.open(recording.path)


@pytest.mark.parametrize("kind", ["reset", "step"])
def test_episodes_with_gaps_are_not_complete_and_not_compared(tmp_path: Path, kind: str) -> None:
    recording = record_walks(Walk, tmp_path, forks=True)
    first = recording.episodes[0].number
    torn = without_lines(recording, (first, kind))
    assert [episode.complete for episode in torn.episodes] == [False] + [True] * 7
    found = check_replay(torn, Walk)
    assert found.ok, found.first
    fork = next(episode.number for episode in torn.episodes if episode.parent == first)
    assert {skipped.episode for skipped in found.skipped} == {first, fork}
    assert "lines of it were lost" in found.skipped[0].reason
    assert found.moments == 24


def test_chance_is_found_at_its_step(tmp_path: Path) -> None:
    recording = record_walks(Moody, tmp_path, forks=True)
    with running(create_app(Moody, max_concurrent_envs=4)) as server:
        found = check_replay(recording, server.url)
    assert not found.ok
    first = found.first
    assert first is not None
    assert (first.episode, first.moment.step, first.seeded) == (1, 3, True)
    assert {difference.path for difference in first.differences} == {"observation.luck", "reward"}
    assert len(found.divergences) == 4, "the other episodes were still played"
    assert len(found.skipped) == 4, "their forks could not be"
    lenient = Comparison(ignore=["observation.luck", "reward"])
    assert check_replay(recording, Moody, comparison=lenient).ok


def test_another_environment_diverges_at_once(tmp_path: Path) -> None:
    recording = record_walks(Walk, tmp_path)
    found = check_replay(recording, Gallery)
    assert found.first is not None
    assert found.first.moment.step == 0
    assert found.first.differences[0].path == "outcome"


def test_failures_are_compared_like_anything_else(tmp_path: Path) -> None:
    with recorded(Walk, tmp_path) as server, GenericEnvClient(server.url) as env:
        env.reset(seed=1)
        with pytest.raises(EnvironmentFailed):
            env.step({"by": 0})
        env.step({"by": 1})
    found = check_replay(the_recording(tmp_path), Walk)
    assert (found.ok, found.moments) == (True, 3)


def test_http_drops_what_the_environment_does_not_take_and_so_does_its_replay(tmp_path: Path) -> None:
    with recorded(Walk, tmp_path) as server, patient.Client(base_url=server.url) as http:
        http.post("/reset", json={"seed": 3, "episode_id": "mine"}).raise_for_status()
        http.post("/step", json={"action": {"by": 2}}).raise_for_status()
    with running(create_app(Walk, max_concurrent_envs=4)) as server:
        found = check_replay(the_recording(tmp_path), server.url)
    assert (found.ok, found.moments) == (True, 2), found.first


def test_tool_calls_are_played_again_through_the_door_they_came_by(tmp_path: Path) -> None:
    classes = {"action_cls": CallToolAction, "observation_cls": CallToolObservation}
    with recorded(Basket, tmp_path, **classes) as server, patient.Client(base_url=server.url) as http:
        http.post("/reset", json={}).raise_for_status()
        mcp = {"Mcp-Session-Id": http.cookies["EnvTorch-Session"]}
        for name, arguments in [
            ("put", {"thing": "egg"}),
            ("put", {"thing": "ham"}),
            ("drop", {}),
            ("look", {}),
        ]:
            params = {"name": name, "arguments": arguments}
            rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            http.post("/mcp", json=rpc, headers=mcp).raise_for_status()
        with server.socket() as socket:
            socket.send('{"type":"reset","data":{}}')
            socket.recv(timeout=PATIENCE_S)
            rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look"}}
            socket.send(httpx.Request("POST", "http://x", json={"type": "mcp", "data": rpc}).content.decode())
            assert "result" in str(socket.recv(timeout=PATIENCE_S))
    with running(create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=4)) as server:
        found = check_replay(the_recording(tmp_path), server.url)
    assert found.ok, found.first
    assert found.moments == 7


def test_what_was_redacted_cannot_be_played_and_says_so(tmp_path: Path) -> None:
    with recorded(Gallery, tmp_path) as server, GenericEnvClient(server.url) as env:
        env.reset()
        env.step({"user": "ada", "code": "hunter2"})
        env.reset()
    found = check_replay(the_recording(tmp_path), Gallery)
    assert (found.ok, found.episodes, found.moments) == (True, 2, 2)
    (skipped,) = found.skipped
    assert (skipped.episode, skipped.step) == (1, 1)
    assert "secret" in skipped.reason
