"""SkyRL's generator interface on EnvTorch: groups for its trainer, and a text environment of its gym.

Run: pip install torch loguru aiohttp omegaconf hydra-core ray 'envtorch[skyrl]'
     python3.12 examples/skyrl_groups.py

SkyRL 0.3 needs Python 3.12. A script stands in for SkyRL's inference engine; its tokens are letters.
"""

import asyncio
import random
import re
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

OLDEST_PYTHON = (3, 12)
if sys.version_info < OLDEST_PYTHON:
    sys.exit("SkyRL 0.3 needs Python 3.12: install it there, and run this example with python3.12")

import skyrl_gym  # noqa: E402
from skyrl.train.generators.base import GeneratorInput, TrajectoryID  # noqa: E402

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve  # noqa: E402
from envtorch.rollout import ChatMessage  # noqa: E402
from envtorch.train.skyrl_generator import SessionGenerator, SessionTextEnv  # noqa: E402
from envtorch.types import Tool  # noqa: E402

ROUNDS, SIZE, END = 3, 4, 0


class Press(Action):
    button: int


class Light(Observation):
    text: str = ""


class Buttons(Environment[Press, Light, State]):
    """Ten buttons, and a light that names one. Each right press is worth 1 / ROUNDS."""

    def reset(self, seed: int | None = None) -> Light:
        self._random, self._state = random.Random(seed), State()
        return self._next(None)

    def step(self, action: Press) -> Light:
        self._state.step_count += 1
        return self._next((action.button == self._light) / ROUNDS)

    def _next(self, reward: float | None) -> Light:
        self._light = self._random.randrange(10)
        done = self._state.step_count == ROUNDS
        return Light(text=f"The light is {self._light}", reward=reward, done=done)

    @property
    def state(self) -> State:
        return self._state


class ButtonsEnv(EnvClient[Press, Light, State]): ...


class Letters:
    """A chat template whose tokens are letters. With a model, give the generator its tokenizer."""

    def begin(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        return [ord(letter) for one in messages for letter in f"<{one['role']}>{one['content']}"]

    def between(self, said: Sequence[int], messages: Sequence[ChatMessage]) -> list[int]:
        return self.begin(messages, ())

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(id) for id in ids if id != END)


class ScriptedEngine:
    """Presses what is lit, in place of SkyRL's inference engine."""

    async def generate(self, asked: dict[str, Any]) -> dict[str, Any]:
        texts = [press(Letters().text(ids)) for ids in asked["prompt_token_ids"]]
        ids = [[*map(ord, text), END] for text in texts]
        logprobs = [[-0.1] * len(one) for one in ids]
        return {"responses": texts, "response_ids": ids, "response_logprobs": logprobs}


def press(conversation: str) -> str:
    return f'{{"button": {re.findall(r"light is (.)", conversation)[-1]}}}'


async def in_groups(url: str) -> None:
    """A batch as SkyRL's trainer gives it: two tasks, each as often as a group has members."""
    generator = SessionGenerator(ButtonsEnv, url, ScriptedEngine(), template=Letters())
    rows = [(seed, member) for seed in range(2) for member in range(SIZE)]
    batch = GeneratorInput(
        prompts=[[] for _ in rows],
        env_classes=["buttons" for _ in rows],
        env_extras=[{"reset": {"seed": seed}} for seed, _ in rows],
        sampling_params={"temperature": 1.0},
        trajectory_ids=[TrajectoryID(str(seed), member) for seed, member in rows],
        batch_metadata=None,
    )
    output = await generator.generate(batch)
    print("generator: rewards", [round(reward, 2) for reward in output["rewards"]])
    print("generator: tokens said", [sum(mask) for mask in output["loss_masks"]])


def in_its_gym(url: str) -> None:
    """One episode as SkyRL's own generator plays it."""
    skyrl_gym.register(id="buttons", entry_point=SessionTextEnv)
    extras = {"client": ButtonsEnv, "base_url": url, "reset": {"seed": 1}}
    env = skyrl_gym.make("buttons", extras=extras)
    conversation, _ = env.init([{"role": "user", "content": "Press what is lit."}])
    total, is_over = 0.0, False
    while not is_over:
        output = env.step(press(str(conversation)))
        conversation += output["observations"]
        total, is_over = total + output["reward"], output["done"]
    env.close()
    print(f"text environment: reward {total:.2f}")


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=32)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    asyncio.run(in_groups(url))
    in_its_gym(url)


if __name__ == "__main__":
    main()
