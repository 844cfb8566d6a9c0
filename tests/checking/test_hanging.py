"""`envtorch check` of an environment that hangs: the method, the line, the exit code, and no process left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envtorch.cli.check_child import _where
from tests.support import PATIENCE_S, eventually

GAME = """
import asyncio, subprocess, threading, time
from envtorch import Action, Environment, Observation, State

LOCK = threading.Lock()

class Game(Environment[Action, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()

    def reset(self):
        return Observation()

    def step(self, action):
        return Observation()

    @property
    def state(self):
        return State()

    def close(self):
        pass
"""
HANGS = "open('reached', 'w').close(); threading.Event().wait()  # here"


def with_line(before: str, instead: str) -> str:
    assert before in GAME
    return GAME.replace(before, instead)


PLACES = {
    "__init__": with_line("super().__init__()", HANGS),
    "reset": with_line("def reset(self):", f"def reset(self):\n        {HANGS}"),
    "step": with_line("def step(self, action):", f"def step(self, action):\n        {HANGS}"),
    "close": with_line("pass", HANGS),
    "<module>": with_line("LOCK =", f"{HANGS}\nLOCK ="),
}
ASYNC = with_line(
    "def step(self, action):",
    "async def step(self, action):\n        asyncio.create_task(asyncio.sleep(3600))\n"
    "        open('reached', 'w').close(); await asyncio.Event().wait()  # here",
)
LOCKED = with_line(
    "def step(self, action):",
    "def step(self, action):\n        if threading.current_thread() is not threading.main_thread():\n"
    "            open('reached', 'w').close(); LOCK.acquire(); LOCK.acquire()  # here",
)


def command(text: str, directory: Path, *options: str) -> list[str]:
    (directory / "game.py").write_text(text)
    return [sys.executable, "-m", "envtorch.cli", "check", "game.py", *options]


def line_in(text: str) -> int:
    (number,) = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    return number


@pytest.mark.parametrize(
    ("method", "text"),
    [*PLACES.items(), ("step", ASYNC), ("step", LOCKED)],
    ids=[*PLACES, "async step", "step in one thread of several"],
)
def test_a_process_that_hangs_tells_the_method_and_the_authors_line(
    method: str, text: str, tmp_path: Path
) -> None:
    progress = tmp_path / "progress"
    progress.mkdir()
    line = command(text, tmp_path, "--in-process", "--progress-in", str(progress))
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL) as child:
        try:
            eventually((tmp_path / "reached").exists, "it hangs")
            told = _where(progress)
        finally:
            child.kill()
    assert (told["method"], told["line"]) == (method, f"game.py, line {line_in(text)}")
    frames = [line.split('"')[1] for line in told["frames"].splitlines() if line.strip().startswith("File ")]
    assert frames[0] == str(tmp_path / "game.py")
    assert not any("envtorch" in Path(frame).parts for frame in frames)


def test_a_check_that_hangs_fails_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    text = with_line(
        "return Observation()\n\n    def step",
        "child = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "        open('pid', 'w').write(str(child.pid))\n        child.wait()  # here\n\n    def step",
    )
    line = command(text, tmp_path, "--timeout-s", "10", "--json")
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert not told["ok"]
    (finding,) = told["findings"]
    assert finding["message"] == f"reset hangs: after 10 s it is in game.py, line {line_in(text)}"
    assert finding["advice"].startswith("give what is waited for there a time limit")
    assert "checking contract (" in done.stderr
    assert "so far; --timeout-s is 10)" in done.stderr
    child = Path("/proc") / (tmp_path / "pid").read_text()
    eventually(lambda: not child.exists(), "what the environment started has ended")


@pytest.mark.slow
def test_code_that_cannot_tell_its_line_is_stopped_all_the_same(tmp_path: Path) -> None:
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); time.sleep(3600)"
    text = with_line("def reset(self):", f"def reset(self):\n        {blocked}")
    line = command(text, tmp_path, "--timeout-s", "10")
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "the environment hangs: it was stopped after 10 s" in " ".join(done.stdout.split())
