"""A recording that cannot be written is told, never lost in silence.

The disk is filled by the kernel's limit on the size of a file (`RLIMIT_FSIZE`), set from outside on the
server's process: every further write fails, and works again when the limit is lifted.
"""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from envtorch import GenericEnvClient
from envtorch.errors import InternalError, RecordingFailed
from tests.recording.test_doors import the_recording
from tests.support import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")


@dataclass(frozen=True)
class RecordingServer:
    url: str
    process: "subprocess.Popen[str]"
    directory: Path

    def fill_disk(self) -> None:
        size = max((path.stat().st_size for path in self.directory.glob("*.jsonl")), default=0)
        self._limit(size + 10)  # less than any line: it is written in part, and cut off again

    def empty_disk(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, soft: int) -> None:
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def ready(self) -> tuple[int, dict[str, Any]]:
        answer = httpx.get(f"{self.url}/ready")
        return answer.status_code, answer.json()

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        return float(line.split()[1])


@contextmanager
def recording_server(directory: Path, *options: str) -> Iterator[RecordingServer]:
    command = [sys.executable, "-m", "tests.recording.recording_server", str(directory), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield RecordingServer(process.stdout.readline().strip(), process, directory)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_a_full_disk_is_told_and_the_steps_go_on(tmp_path: Path) -> None:
    with recording_server(tmp_path) as server, GenericEnvClient(server.url, connect_timeout_s=60) as env:
        env.reset(seed=1)
        env.step({"by": 1})
        eventually(lambda: _lines(tmp_path) == 3, "header, reset and step are written")
        assert server.ready() == (200, {"ready": True})

        server.fill_disk()
        env.step({"by": 1})
        eventually(lambda: server.metric("envtorch_recording_failing") == 1, "the failure is counted")
        assert server.metric("envtorch_recording_dropped_lines_total") == 1
        assert server.ready() == (200, {"ready": True, "recording": "File too large"})
        assert env.step({"by": 1}).observation["place"] == 3

        server.empty_disk()
        eventually(lambda: server.metric("envtorch_recording_failing") == 0, "it is written again")
        env.step({"by": 1})
    recording = the_recording(tmp_path)
    kinds = [type(line).__name__ for line in recording.lines()]
    assert kinds[:5] == ["Header", "Reset", "Step", "Lost", "Step"]
    assert not recording.is_torn
    assert not recording.episodes[0].complete


def test_a_recording_that_is_required_refuses_steps_while_the_disk_is_full(tmp_path: Path) -> None:
    with (
        recording_server(tmp_path, "required") as server,
        GenericEnvClient(server.url, connect_timeout_s=60) as env,
    ):
        env.reset(seed=1)
        env.step({"by": 1})
        eventually(lambda: _lines(tmp_path) == 3, "header, reset and step are written")
        server.fill_disk()
        env.step({"by": 1})  # its line is the one that meets the full disk
        eventually(lambda: server.ready()[0] == 503, "the server is not ready")
        assert server.ready()[1]["detail"] == "recording failed"
        with pytest.raises(RecordingFailed, match="File too large") as refused:
            env.step({"by": 1})
        assert isinstance(refused.value, InternalError), "a fault of the infrastructure, not of a policy"

        server.empty_disk()
        eventually(lambda: server.ready()[0] == 200, "it is tried again without a call")
        assert env.step({"by": 1}).observation["place"] == 3, "the refused step was never taken"


def _lines(directory: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in directory.glob("*.jsonl"))
