"""64 sessions on one socket as a Gymnasium vector, and a policy that learns on them.

Run: pip install 'envtorch[gymnasium]' && python examples/gymnasium_learning.py
"""

import random
import socket
import threading
from typing import Annotated

import gymnasium
import numpy as np
from pydantic import Field

import envtorch.train.gymnasium_envs  # noqa: F401, registers envtorch/Session-v0
from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve

ROUNDS = 5
Button = Annotated[int, Field(ge=0, le=9)]


class Press(Action):
    button: Button


class Light(Observation):
    light: Button = 0


class Buttons(Environment[Press, Light, State]):
    """Ten buttons, and a light. Each light wants another button, and nobody says which."""

    def reset(self, seed: int | None = None) -> Light:
        self._random, self._state = random.Random(seed), State()
        self._light = self._random.randrange(10)
        return Light(light=self._light)

    def step(self, action: Press) -> Light:
        self._state.step_count += 1
        right = action.button == (3 * self._light + 1) % 10
        self._light = self._random.randrange(10)
        return Light(light=self._light, reward=right / ROUNDS, done=self._state.step_count == ROUNDS)

    @property
    def state(self) -> State:
        return self._state


class ButtonsEnv(EnvClient[Press, Light, State]): ...


def learn(envs: gymnasium.vector.VectorEnv, steps: int) -> list[float]:
    """Estimate what each button is worth under each light; the mean return of each ten steps."""
    values, random = np.zeros((10, 10)), np.random.default_rng(0)
    lights, _ = envs.reset(seed=0)
    was_over = np.zeros(envs.num_envs, dtype=bool)
    rewards = np.zeros(steps)
    for step in range(steps):
        explores = random.random(envs.num_envs) < 0.5 * (1 - step / steps)
        buttons = np.where(explores, random.integers(10, size=envs.num_envs), values[lights].argmax(1))
        after, reward, terminated, truncated, _ = envs.step(buttons)
        played = ~was_over  # a step after the end of an episode begins the next one
        error = reward[played] * ROUNDS - values[lights[played], buttons[played]]
        np.add.at(values, (lights[played], buttons[played]), 0.2 * error)
        rewards[step] = reward[played].mean() * ROUNDS if played.any() else np.nan
        lights, was_over = after, terminated | truncated
    return [float(np.nanmean(part)) for part in np.array_split(rewards, steps // 10)]


def main() -> list[float]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=64)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    envs = gymnasium.make_vec(
        "envtorch/Session-v0",
        num_envs=64,
        vectorization_mode="vector_entry_point",
        client=ButtonsEnv,
        base_url=f"http://127.0.0.1:{listener.getsockname()[1]}",
    )
    try:
        returns = learn(envs, steps=200)
    finally:
        envs.close()
    for ten, mean in enumerate(returns):
        print(f"steps {10 * ten:3}-{10 * ten + 9:3}: {mean:.2f} {'#' * round(40 * mean)}")
    return returns


if __name__ == "__main__":
    main()
