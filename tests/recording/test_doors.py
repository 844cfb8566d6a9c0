"""Whatever door an episode comes through, it is in the recording; without one, nothing is in the way."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

from envtorch import GenericEnvClient, create_app
from envtorch.errors import ConfigurationError, EnvironmentFailed
from envtorch.recording import Recording, Reset, Step, ToolCall, find_recordings
from envtorch.testing import check_replay
from envtorch.tools import CallToolAction, CallToolObservation
from tests import patient
from tests.recording.environments import Canvas, Gallery, Walk, WalkOnThread
from tests.support import PATIENCE_S, Running, eventually, running
from tests.tools.environments import Basket


@contextmanager
def recorded(environment: Any, directory: Path, **options: Any) -> Iterator[Running]:
    options.setdefault("max_concurrent_envs", 16)
    with running(create_app(environment, record=directory, **options)) as server:
        yield server


def the_recording(directory: Path) -> Recording:
    (path,) = find_recordings(directory)
    return Recording.open(path)


def by_client(server: Running, wire: Any) -> None:
    with GenericEnvClient(server.url, wire=wire) as env:
        env.reset(seed=7, start=2)
        env.step({"by": 3})
        env.step({"by": 5})


def by_http(server: Running) -> None:
    with patient.Client(base_url=server.url) as http:
        http.post("/reset", json={"seed": 7, "start": 2}).raise_for_status()
        for by in (3, 5):
            http.post("/step", json={"action": {"by": by}}).raise_for_status()
        http.post("/close").raise_for_status()


DOORS: dict[str, Callable[[Running], None]] = {
    "extended, JSON": lambda server: by_client(server, "json"),
    "extended, MessagePack": lambda server: by_client(server, "msgpack"),
    "OpenEnv's": lambda server: by_client(server, "openenv"),
    "HTTP": by_http,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("environment", [Walk, WalkOnThread])
def test_every_door_is_recorded_alike(door: str, environment: type, tmp_path: Path) -> None:
    with recorded(environment, tmp_path) as server:
        DOORS[door](server)
    recording = the_recording(tmp_path)
    (episode,) = recording.episodes
    assert (episode.seed, episode.options["start"], episode.steps) == (7, 2, 2)
    assert episode.done
    assert episode.ended
    assert episode.complete
    reset, first, last = recording.moments(episode)
    assert isinstance(reset, Reset)
    assert isinstance(first, Step)
    assert (reset.observation["place"], first.observation["place"], last.observation["place"]) == (2, 5, 10)
    assert (first.given, last.given, last.done) == ({"by": 3}, {"by": 5}, True)
    assert first.reward == first.observation["luck"]
    assert first.seconds >= 0
    assert reset.at <= first.at <= last.at
    assert episode.total_reward == pytest.approx(sum(float(m.reward or 0) for m in (first, last)))


@pytest.mark.parametrize("environment", [Walk, WalkOnThread])
def test_steps_taken_together_are_recorded_one_by_one(environment: type, tmp_path: Path) -> None:
    with recorded(environment, tmp_path) as server, GenericEnvClient.vector(server.url, 4) as envs:
        envs.reset(seed=1)
        for _ in range(3):
            envs.step([{"by": 1}, {"by": 2}, {"by": 3}, {"by": 1}])
    recording = the_recording(tmp_path)
    assert [episode.steps for episode in recording.episodes] == [3, 3, 3, 3]
    places = [recording.moments(episode)[-1].observation["place"] for episode in recording.episodes]
    assert sorted(places) == [3, 3, 6, 9]
    assert check_replay(recording, environment).ok


def test_process_isolation_is_recorded_too(tmp_path: Path) -> None:
    with recorded("tests.recording.environments:WalkOnThread", tmp_path, isolation="process") as server:
        by_client(server, "json")
    (episode,) = the_recording(tmp_path).episodes
    assert (episode.seed, episode.steps, episode.ended) == (7, 2, True)


def test_the_header_says_what_was_served(tmp_path: Path) -> None:
    with recorded(Walk, tmp_path, env_name="walk") as server:
        by_client(server, "json")
    header = the_recording(tmp_path).header
    assert header.environment == "walk"
    assert set(header.versions) >= {"python", "envtorch"}
    assert header.action_schema["properties"]["by"]["type"] == "integer"
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".jsonl", ".parquet"]


def test_failures_are_outcomes(tmp_path: Path) -> None:
    with recorded(Walk, tmp_path) as server, GenericEnvClient(server.url) as env:
        env.reset(seed=1)
        with pytest.raises(EnvironmentFailed):
            env.step({"by": 0})
        env.step({"by": 1})
    recording = the_recording(tmp_path)
    (episode,) = recording.episodes
    _, failed, went_on = recording.moments(episode)
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("EXECUTION_ERROR", "standing still is not walking")
    assert went_on.observation["place"] == 1
    assert episode.errors == 1


def test_forks_begin_where_their_parent_stands(tmp_path: Path) -> None:
    with recorded(Walk, tmp_path) as server, GenericEnvClient(server.url) as env:
        env.reset(seed=1)
        env.step({"by": 1})
        left, right = env.fork(2)
        with left, right:
            left.step({"by": 2})
            (leaf,) = left.fork(1)
            with leaf:
                leaf.step({"by": 3})
            right.step({"by": 4})
            right.reset(seed=2)
    recording = the_recording(tmp_path)
    trunk, one, other, grandchild, new = recording.episodes
    assert [e.parent for e in recording.episodes] == [None, trunk.number, trunk.number, one.number, None]
    places = [m.observation["place"] for m in recording.moments(grandchild)]
    assert places == [0, 1, 3, 6]
    assert [m.step for m in recording.moments(grandchild)] == [0, 1, 2, 3]
    assert len(recording.moments(other, inherited=False)) == 1
    assert new.session == other.session


def test_several_episodes_of_one_session(tmp_path: Path) -> None:
    with recorded(Walk, tmp_path) as server, GenericEnvClient(server.url) as env:
        for seed in range(3):
            env.reset(seed=seed)
            env.step({"by": 1})
    recording = the_recording(tmp_path)
    assert [episode.seed for episode in recording.episodes] == [0, 1, 2]
    assert len({episode.session for episode in recording.episodes}) == 1
    assert all(episode.ended for episode in recording.episodes)


def test_tools_through_either_mcp(tmp_path: Path) -> None:
    tools = {"action_cls": CallToolAction, "observation_cls": CallToolObservation}
    with recorded(Basket, tmp_path, **tools) as server, patient.Client(base_url=server.url) as http:
        call = {"name": "put", "arguments": {"thing": "leek"}}
        http.post("/reset", json={}).raise_for_status()
        session = http.cookies["EnvTorch-Session"]
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        http.post("/mcp", json=rpc, headers={"Mcp-Session-Id": session}).raise_for_status()
        with server.socket("/mcp") as socket:
            socket.send(json.dumps(rpc))
            assert "result" in json.loads(socket.recv(timeout=PATIENCE_S))
    recording = the_recording(tmp_path)
    calls = [m for e in recording.episodes for m in recording.moments(e) if isinstance(m, ToolCall)]
    assert [(call.name, call.form) for call in calls] == [("put", "mcp"), ("put", "value")]
    assert all(call.arguments == {"thing": "leek"} for call in calls)
    assert calls[0].observation["isError"] is False


def test_secrets_are_never_written(tmp_path: Path) -> None:
    with recorded(Gallery, tmp_path) as server:
        with GenericEnvClient(server.url, wire="msgpack") as env:
            env.reset(api_key="sk-first")
            env.step({"user": "ada", "code": "hunter2"})
        with patient.Client(base_url=server.url) as http:
            http.post("/reset", json={"api_key": "sk-second"})
            http.post("/step", json={"action": {"user": "bob", "code": "hunter3"}})
            token = http.cookies["EnvTorch-Session"]
    assert {"hunter2", "hunter3"} <= set(Gallery.seen)
    for path in tmp_path.iterdir():
        written = path.read_bytes()
        for secret in (b"hunter", b"sk-first", b"sk-second", token.encode()):
            assert secret not in written, path
    recording = the_recording(tmp_path)
    moments = recording.moments(recording.episodes[0])
    assert [moment.redacted for moment in moments] == [True, True]
    assert moments[1].observation["pixels"] == [[7, 7], [7, 7]], "arrays are lists"


def test_a_tool_call_with_a_large_integer_is_answered_and_recorded(tmp_path: Path) -> None:
    tools = {"action_cls": CallToolAction, "observation_cls": CallToolObservation}
    with recorded(Basket, tmp_path, **tools) as server, server.socket("/mcp") as socket:
        for number, (name, arguments) in enumerate([("put", {"thing": 2**70}), ("look", {})]):
            params = {"name": name, "arguments": arguments}
            socket.send(
                json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            )
            assert json.loads(socket.recv(timeout=PATIENCE_S))["id"] == number
    recording = the_recording(tmp_path)
    (episode,) = recording.episodes
    assert episode.complete
    assert [moment.given for moment in recording.moments(episode)] == [
        {"tool": "put", "arguments": {"thing": 2**70}},
        {"tool": "look", "arguments": {}},
    ]


def test_arrays_in_actions_are_recorded_as_lists(tmp_path: Path) -> None:
    with recorded(Canvas, tmp_path, max_concurrent_envs=1) as server:
        with GenericEnvClient(server.url, wire="msgpack") as env:
            env.reset()
            assert env.step({"points": numpy.arange(3.0)}).observation["user"] == "ndarray"
        assert server.sessions.recorder is not None
        assert server.sessions.recorder.dropped == 0
    recording = the_recording(tmp_path)
    (episode,) = recording.episodes
    assert [moment.given for moment in recording.moments(episode)][1:] == [{"points": [0.0, 1.0, 2.0]}]


def test_an_action_that_cannot_be_written_is_counted_and_its_episode_has_a_gap(tmp_path: Path) -> None:
    with recorded(Canvas, tmp_path, max_concurrent_envs=1, record_required=True) as server:
        recorder = server.sessions.recorder
        assert recorder is not None
        with GenericEnvClient(server.url, wire="msgpack") as env:
            env.reset()
            env.step({"points": numpy.array([1j, 2j])})
            env.step({"points": 1})
        eventually(lambda: recorder.dropped == 1, "the line is counted")
    recording = the_recording(tmp_path)
    (episode,) = recording.episodes
    assert not episode.complete
    assert [moment.step for moment in recording.moments(episode)] == [0, 2]


def test_a_server_that_records_nothing_has_nothing_in_its_way(tmp_path: Path) -> None:
    with running(create_app(Walk, max_concurrent_envs=2)) as server, GenericEnvClient(server.url) as env:
        env.reset()
        assert server.sessions.recorder is None
    with recorded(Walk, tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [], "no call, no file"


def test_a_directory_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigurationError, match="name another directory"):
        create_app(Walk, record=blocked)
