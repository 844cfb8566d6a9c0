"""TorchRL collects data from an EnvTorch server, through the Gymnasium adapter.

Run: pip install torch torchrl 'envtorch[gymnasium]' && python examples/torchrl_collector.py
"""

import random
import socket
import threading
from typing import Annotated

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve
from envtorch.train import GymnasiumEnv

ROUNDS = 5
Button = Annotated[int, Field(ge=0, le=9)]


class Press(Action):
    button: Button


class Light(Observation):
    light: Button = 0


class Buttons(Environment[Press, Light, State]):
    """Ten buttons, and a light that names one. Each right press is worth 1 / ROUNDS."""

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


def press_what_is_lit(seen: TensorDictBase) -> TensorDictBase:
    return seen.set("action", seen["observation"])


def main() -> float:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=8)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    session = GymnasiumEnv(ButtonsEnv, f"http://127.0.0.1:{listener.getsockname()[1]}")
    env = GymWrapper(session, categorical_action_encoding=True)
    check_env_specs(env)
    print("check_env_specs passed; a light is one of", env.observation_spec["observation"].n)
    collector = Collector(env, press_what_is_lit, frames_per_batch=100, total_frames=400)
    total, episodes = 0.0, 0
    for batch in collector:
        total += float(batch["next", "reward"].sum())
        episodes += int(torch.as_tensor(batch["next", "done"]).sum())
    collector.shutdown()
    print(f"{episodes} episodes, mean return {total / episodes:.2f}")
    return total / episodes


if __name__ == "__main__":
    main()
