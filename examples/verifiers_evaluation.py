"""verifiers evaluates a model in an EnvTorch environment: by a taskset of ours, and by its own `openenv`.

Run: pip install 'envtorch[verifiers]' && python examples/verifiers_evaluation.py

This file is also the taskset's module: verifiers imports it by its name. The model is a script behind an
OpenAI-compatible endpoint in this process.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve
from envtorch.train.verifiers_tasks import VerifiersEnv, VerifiersTaskset

__all__ = ["VerifiersEnv", "VerifiersTaskset"]

ROUNDS = 3


class Press(Action):
    button: int


class Light(Observation):
    light: int = 0


class Buttons(Environment[Press, Light, State]):
    """Ten buttons, and a light that names one. Each right press is worth 1 / ROUNDS."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None) -> Light:
        self._random, self._state = random.Random(seed), State()
        self._light = self._random.randrange(10)
        return Light(light=self._light)

    def step(self, action: Press) -> Light:
        self._state.step_count += 1
        reward = (action.button == self._light) / ROUNDS
        self._light = self._random.randrange(10)
        return Light(light=self._light, reward=reward, done=self._state.step_count == ROUNDS)

    @property
    def state(self) -> State:
        return self._state


class ButtonsEnv(EnvClient[Press, Light, State]): ...


class ScriptedModel(BaseHTTPRequestHandler):
    """Streams the number of the light in the last message, as JSON."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        lights = re.findall(r"light\D{0,4}(\d)", json.dumps(asked["messages"][-1]))
        text = json.dumps({"button": int(lights[-1])})
        head = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": asked["model"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        delta = {"role": "assistant", "content": text}
        chunks = [
            head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            head | {"choices": [], "usage": usage},
        ]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None: ...


SETTINGS = """
model = "scripted"
num_rollouts = 4
push = false
[client]
base_url = "{model}"
api_key_var = "MODEL_KEY"
[env.player.harness]
id = "null"
[env.player.runtime]
type = "subprocess"
[env.taskset]
base_url = "{url}"
resets = [{{ seed = 1 }}, {{ seed = 2 }}]
"""

TASKSETS = {
    "ours": 'id = "verifiers_evaluation"\nclient = "verifiers_evaluation:ButtonsEnv"\n',
    "openenv": 'id = "openenv"\n',
}


def evaluate(settings: str) -> list[float]:
    """The rewards of `vf-eval`, in a process of its own. `openenv` is our alias there."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "eval.toml"
        config.write_text(settings)
        program = Path(sys.executable).with_name("vf-eval")
        command = [sys.executable, "-m", "envtorch.compat", str(program), "@", str(config)]
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "MODEL_KEY": "none", "PYTHONPATH": path}
        subprocess.run(command, cwd=scratch, env=environment, check=True, stdout=subprocess.DEVNULL)
        (traces,) = Path(scratch).rglob("traces.jsonl")
        return [reward_of(json.loads(line)) for line in traces.read_text().splitlines()]


def reward_of(episode: dict[str, Any]) -> float:
    """What verifiers recorded for the one agent of an episode. Raises its error, if it has one."""
    (trace,) = episode["traces"]
    if episode.get("errors") or trace.get("errors"):
        raise RuntimeError(f"{episode.get('errors')} {trace.get('errors')}")
    return float(sum(reward["score"] for reward in trace["rewards"].values()))


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=32)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    model = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    places = {
        "model": f"http://127.0.0.1:{model.server_port}/v1",
        "url": f"http://127.0.0.1:{listener.getsockname()[1]}",
    }
    for name, taskset in TASKSETS.items():
        rewards = evaluate(SETTINGS.format(**places) + taskset)
        print(f"{name}: {len(rewards)} episodes, mean reward {sum(rewards) / len(rewards):.2f}")


if __name__ == "__main__":
    main()
