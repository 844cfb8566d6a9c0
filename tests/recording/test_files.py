"""Recordings on disk: killed writers, slow disks, Parquet and `datasets`."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from envtorch import GenericEnvClient
from envtorch.errors import ConfigurationError
from envtorch.protocol.calls import Call
from envtorch.recording import Recording, find_recordings
from envtorch.recording.format import End, Lost, read_line, write_line
from envtorch.recording.parquet import COLUMNS, export
from envtorch.recording.recorder import Recorder
from envtorch.recording.redaction import Redactor
from envtorch.recording.session_recorder import SessionRecorder
from envtorch.recording.writer import LineWriter
from tests.recording.environments import Walk
from tests.recording.test_doors import recorded, the_recording
from tests.support import PATIENCE_S, eventually

SERVE = [sys.executable, "-m", "envtorch.cli", "serve", "tests.recording.environments:Walk", "--port", "0"]


def test_a_killed_server_leaves_every_step_it_answered(tmp_path: Path) -> None:
    server = subprocess.Popen([*SERVE, "--record", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        url = next(word for word in server.stderr.readline().split() if word.startswith("http://"))
        env = GenericEnvClient(url, connect_timeout_s=PATIENCE_S, reconnect_s=0.1)
        env.reset(seed=1)
        for _ in range(5):
            env.step({"by": 1})

        def written() -> int:
            return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("*.jsonl"))

        eventually(lambda: written() == 7, "header, reset and five steps are on disk")
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait(timeout=PATIENCE_S)
        assert server.stderr is not None
        server.stderr.close()
    env.close()
    (episode,) = the_recording(tmp_path).episodes
    assert (episode.steps, episode.ended) == (5, False)
    assert export(the_recording(tmp_path).path).exists(), "Parquet can be made of what is there"


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    with recorded(Walk, tmp_path) as server, GenericEnvClient(server.url) as env:
        env.reset(seed=1)
        env.step({"by": 1})
    (path,) = find_recordings(tmp_path)
    whole = path.read_bytes()
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(whole[:-20])
    recording = Recording.open(torn)
    assert recording.is_torn
    assert [e.steps for e in recording.episodes] == [1]
    assert not recording.episodes[0].ended
    assert len(list(recording.lines())) == whole.count(b"\n") - 1


@pytest.mark.parametrize(
    "content", ["", "no json", '{"kind":"end","episode":1,"at":0,"reason":"x"}\n', "{}\n"]
)
def test_what_is_no_recording_says_so(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"no recording|no line of a recording"):
        Recording.open(path)


def test_places_without_recordings_say_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--record"):
        find_recordings(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no recording at"):
        find_recordings(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"open .*x\.jsonl"):
        Recording.open(tmp_path / "x.parquet")


def test_a_disk_that_cannot_keep_up_costs_lines_and_says_so(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, environment="slow", backlog_bytes=1000)
    stuck, go_on = threading.Event(), threading.Event()

    def slow_line() -> bytes:
        stuck.set()
        go_on.wait(PATIENCE_S)
        return b""

    recorder.put(1, 10, slow_line)
    assert stuck.wait(PATIENCE_S)
    line = b'{"kind":"step","session":1,"episode":1,"step":1,"at":0,"seconds":0,"action":{}}\n'
    for _ in range(5):
        recorder.put(1, 400, lambda: line)
    go_on.set()
    recorder.close()
    written = [json.loads(text) for text in find_recordings(tmp_path)[0].read_text().splitlines()]
    assert [entry["kind"] for entry in written] == ["recording", "step", "step", "lost"]
    assert written[-1]["count"] == 3
    (episode,) = the_recording(tmp_path).episodes
    assert not episode.complete


def test_a_value_that_cannot_be_written_costs_one_line_and_is_counted(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "lines", first_line=b"first\n", describe_loss=lambda missing: b"lost\n")

    def broken() -> bytes:
        raise TypeError("no such line")

    writer.put(1, 1, lambda: b"one\n")
    writer.put(1, 1, broken)
    writer.put(1, 1, lambda: b"two\n")
    writer.close()
    written = (tmp_path / "lines").read_text().split()
    assert sorted(written) == ["first", "lost", "one", "two"]
    assert [line for line in written if line != "lost"] == ["first", "one", "two"]
    assert writer.dropped == 1


def test_a_line_that_was_never_put_is_counted_and_told(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, environment="walk")
    recorder.put(1, 1, lambda: write_line(End(episode=1, at=0.0, reason="closed")))
    recorder.lose(1)
    assert recorder.dropped == 1
    recorder.close()
    lines = [read_line(text) for text in find_recordings(tmp_path)[0].read_bytes().splitlines()]
    assert sum(line.count for line in lines if isinstance(line, Lost)) == 1


def test_a_call_that_cannot_be_recorded_is_counted_and_raises_nothing() -> None:
    class BrokenStore:
        redactor = Redactor()
        lost: list[int] = []

        def next_episode(self) -> int:
            return 7

        def put(self, episode: int, size: int, render: Any) -> None:
            raise RuntimeError("can't start new thread")

        def lose(self, episode: int) -> None:
            self.lost.append(episode)

        def require_disk(self) -> None: ...

    store = BrokenStore()
    recorder = SessionRecorder(store, 1)
    recorder.note(Call.reset(), None)
    recorder.note(Call.step(b"{}"), None)
    assert store.lost == [7, 7]


def test_parquet_loads_with_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    directory = tmp_path / "recordings"
    with recorded(Walk, directory) as server, GenericEnvClient(server.url) as env:
        env.reset(seed=5)
        env.step({"by": 4})
        (copy,) = env.fork(1)
        with copy:
            copy.step({"by": 6})
    (path,) = directory.glob("*.parquet")
    loaded = datasets.load_dataset(
        "parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.column_names == COLUMNS.names
    rows = [loaded[index] for index in range(len(loaded))]
    assert [(row["kind"], row["step"]) for row in rows] == [("reset", 0), ("step", 1), ("step", 2)]
    assert json.loads(rows[1]["action"]) == {"by": 4}
    assert json.loads(rows[1]["observation"])["place"] == 4
    assert rows[2]["parent_episode_id"] == rows[0]["episode_id"]
    assert (rows[0]["seed"], rows[2]["done"]) == (5, True)
    assert rows[1]["reward"] == json.loads(rows[1]["observation"])["luck"]
