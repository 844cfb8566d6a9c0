"""SIGTERM with a call that does not return: the caller is told, and the server is gone in its drain time."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import httpx
import pytest

from envtorch import Action, EnvClient, Environment, Observation, State
from envtorch.errors import Draining
from tests import patient
from tests.support import eventually

SERVER = """
import socket, sys
from envtorch import create_app
from envtorch.server import serve
from tests.server.test_drain import Sleeper

listener = socket.socket(fileno=int(sys.argv[1]))
serve(create_app(Sleeper, sessions=4), listener=listener, drain_s=float(sys.argv[2]))
"""


class Sleeper(Environment[Action, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None) -> Observation:
        return Observation()

    def step(self, action: Action) -> Observation:
        time.sleep(60)
        return Observation()

    @property
    def state(self) -> State:
        return State()


class SleeperEnv(EnvClient[Action, Observation, State]): ...


@pytest.mark.parametrize(("door", "signals"), [("websocket", 1), ("http", 1), ("http", 2)])
def test_a_thread_that_hangs_does_not_hold_up_the_end(door: str, signals: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-c", SERVER, str(listener.fileno()), "0.5" if signals == 1 else "60"]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], cwd=Path(__file__).parents[2])
    told: list[object] = []

    def over_websocket() -> None:
        env = SleeperEnv(url)
        env.reset()
        try:
            env.step(Action())
        except Draining as error:
            told.append(error.code)

    def over_http() -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            client.post("/reset", json={})
            told.append(client.post("/step", json={"action": {}}).json()["code"])

    try:
        patient.get(url + "/health").raise_for_status()
        caller = Thread(target=over_http if door == "http" else over_websocket, daemon=True)
        caller.start()
        eventually(lambda: 'phase="busy"} 1' in patient.get(url + "/metrics").text, "the step runs")
        began = time.monotonic()
        process.terminate()
        if signals == 2:  # the second one hurries
            eventually(lambda: patient.get(url + "/ready").status_code == 503, "it drains")
            process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 5, "waited for a thread that cannot be stopped"
        caller.join(10)
        assert told == ["DRAINING"]
    finally:
        process.kill()
        process.wait()
