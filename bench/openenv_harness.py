"""OpenEnv's `build_harness_rollout_func`, timed. Runs where OpenEnv is installed: URL STEP_S ROLLOUTS TURNS.

The function plays one rollout after another, and one session has no other to share a call of the model with.
"""

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

from openenv.core.generic_client import GenericEnvClient
from openenv.core.harness import build_harness_rollout_func

URL, STEP_S, ROLLOUTS, TURNS = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


class Session:
    def __init__(self, task: dict[str, Any]) -> None:
        self.env = GenericEnvClient(base_url=URL).sync()
        self.env.connect()
        self.light = self.env.reset(**task).observation["light"]
        self.reward = 0.0

    def press(self, button: int) -> bool:
        result = self.env.step({"button": button})
        self.light, self.reward = result.observation["light"], self.reward + result.reward
        return bool(result.done)

    def verify(self, transcript: Any, final_state: Any) -> Any:
        return SimpleNamespace(env_reward=self.reward, metrics={}, reward=self.reward)

    def close(self) -> None:
        self.env.close()


class Adapter:
    def run_white_box(self, model_step: Any, session: Session, limits: Any) -> Any:
        done = False
        while not done:
            done = session.press(model_step(session.light))
        told: dict[str, Any] = {"messages": [], "done": True, "metrics": {}, "events": [], "tool_trace": []}
        return SimpleNamespace(**told, prompt_ids=[0], completion_ids=[0], logprobs=[0.0], env_reward=None)


def model_step(trainer: Any, session: Session) -> Any:
    def step(light: int) -> int:
        time.sleep(0.005 + 0.0001)
        return light

    return step


play = build_harness_rollout_func(
    session_factory=SimpleNamespace(create=Session), harness_adapter=Adapter(), model_step_builder=model_step
)
tasks = [{"seed": n // 8, "rounds": TURNS, "step_s": STEP_S} for n in range(ROLLOUTS)]
began = time.perf_counter()
played = play(tasks, None)
took = time.perf_counter() - began
print(json.dumps({"seconds": took, "reward": sum(played["env_reward"]) / len(played["env_reward"])}))
