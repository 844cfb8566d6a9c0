"""tinker-cookbook rolls out groups on an EnvTorch server: one reset, and a fork for each further member.

Run: pip install torch 'envtorch[tinker]' && python examples/tinker_groups.py

The policy is a script in place of Tinker's sampling service; its tokens are letters.
"""

import asyncio
import random
import re
import socket
import threading
from collections.abc import Sequence
from typing import Any

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_group_rollout

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve
from envtorch.rollout import ChatMessage
from envtorch.train.tinker_groups import SessionGroupBuilder
from envtorch.types import Tool

ROUNDS, SIZE, END = 3, 8, 0


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
    """A chat template whose tokens are letters. With a model, use `TransformersTemplate(tokenizer)`."""

    def begin(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        return [ord(letter) for one in messages for letter in f"<{one['role']}>{one['content']}"]

    def between(self, said: Sequence[int], messages: Sequence[ChatMessage]) -> list[int]:
        return self.begin(messages, ())

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(id) for id in ids if id != END)


class Scripted(TokenCompleter):
    """Presses what is lit, and in every third completion another button."""

    calls = 0

    async def __call__(
        self, model_input: Any, stop: Any, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        Scripted.calls += 1
        light = int(re.findall(r"light is (\d)", Letters().text(model_input.to_ints()))[-1])
        button = (light + (Scripted.calls % 3 == 0)) % 10
        ids = [*map(ord, f'{{"button": {button}}}'), END]
        return TokensWithLogprobs(tokens=ids, maybe_logprobs=[-0.1] * len(ids))


async def play(url: str) -> None:
    for seed in range(4):
        builder = SessionGroupBuilder(
            ButtonsEnv, url, {"seed": seed}, size=SIZE, template=Letters(), stop=[END]
        )
        group = await do_group_rollout(builder, Scripted())
        rewards = " ".join(f"{reward:.2f}" for reward in group.get_total_rewards())
        reasons = {trajectory.stop_reason for trajectory in group.trajectories_G}
        print(f"task {seed}: {rewards} ({', '.join(map(str, reasons))})")


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=32)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    asyncio.run(play(f"http://127.0.0.1:{listener.getsockname()[1]}"))


if __name__ == "__main__":
    main()
