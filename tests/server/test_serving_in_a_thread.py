"""A program that serves in a thread of its own: what becomes of the server when the program ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PATIENCE_S

ENVIRONMENT = """
import os
from envtorch import Action, Environment, Observation, State

class Said(Action): ...
class Heard(Observation): ...

class Leaves(Environment[Said, Heard, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self): return Heard()
    def step(self, action): return Heard()
    def close(self): os.write(1, b"closed\\n")
    @property
    def state(self): return State()
"""
PROGRAM = """
import socket, sys, threading, urllib.request
from envtorch import create_app, serve
from leaving import Leaves

listener = socket.create_server(("127.0.0.1", 0))
app = create_app(Leaves, sessions=4, isolation=sys.argv[1] or None, record=sys.argv[2])
threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
for _ in range(2):  # sessions over HTTP, which stay open until their lease is over
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/reset"
    asked = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
    assert urllib.request.urlopen(asked).status == 200
print("played", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("isolation", ["", "process"], ids=["in a thread", "in a process"])
def test_a_server_in_a_thread_stops_in_order_when_the_program_ends(tmp_path: Path, isolation: str) -> None:
    (tmp_path / "leaving.py").write_text(ENVIRONMENT)
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, tmp_path / "program.py", isolation, tmp_path / "recorded"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.stdout.splitlines() == ["played", "closed", "closed"], ended
    assert (ended.stderr, ended.returncode) == ("", 7)


EARLY = """
import os, socket, sys, threading, time
import envtorch.server.serve
from envtorch import create_app, serve
from leaving import Leaves

envtorch.server.serve.LEAVE_S = float(sys.argv[1])
building = threading.Event()

class NeverBuilt(Leaves):
    def __init__(self):
        building.set()
        time.sleep(3600)

def run():
    serve(create_app(NeverBuilt), listener=socket.create_server(("127.0.0.1", 0)), on_ready=lambda: None)
    os.write(1, b"stopped\\n")

threading.Thread(target=run, daemon=True).start()
building.wait()
sys.exit(7)
"""


def test_a_server_in_a_thread_stops_while_its_first_environment_is_being_built(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(ENVIRONMENT)
    (tmp_path / "early.py").write_text(EARLY)
    ended = subprocess.run(
        [sys.executable, tmp_path / "early.py", str(PATIENCE_S / 2)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ended.stdout, ended.returncode) == ("stopped\n", 7), ended
