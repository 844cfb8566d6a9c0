"""RLlib's PPO learns on an EnvTorch server, through the Gymnasium adapter.

Run: pip install torch 'ray[rllib]' 'envtorch[gymnasium]' && python examples/rllib_ppo.py
"""

import os
import random
import socket
import threading
from typing import Annotated, Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")

import gymnasium
import numpy as np
import ray
from pydantic import Field
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

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


def make_env(config: dict[str, Any]) -> gymnasium.Env:
    """An environment for one of RLlib's runners. A network takes the light as one of ten inputs."""
    env = GymnasiumEnv(ButtonsEnv, config["base_url"])
    return gymnasium.wrappers.DtypeObservation(gymnasium.wrappers.FlattenObservation(env), np.float32)


def main(iterations: int = 15) -> list[float]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=32)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
    )
    register_env("buttons", make_env)
    config = (
        PPOConfig()
        .environment("buttons", env_config={"base_url": f"http://127.0.0.1:{listener.getsockname()[1]}"})
        .env_runners(num_env_runners=1, num_envs_per_env_runner=8, sample_timeout_s=600)
        .training(train_batch_size_per_learner=1000, minibatch_size=250, num_epochs=8, lr=3e-3)
    )
    algorithm = config.build_algo()
    returns = []
    try:
        for iteration in range(iterations):
            returns.append(float(algorithm.train()["env_runners"]["episode_return_mean"]))
            print(f"{iteration:2}: return {returns[-1]:.3f} {'#' * round(40 * returns[-1])}", flush=True)
    finally:
        algorithm.stop()
        ray.shutdown()
    return returns


if __name__ == "__main__":
    main()
