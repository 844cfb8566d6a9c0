"""verl's agent loop plays on an EnvTorch server. A script stands in for verl's engine, which needs a GPU.

Run: pip install torch cachetools 'envtorch[verl]' && python examples/verl_agent_loop.py
"""

import asyncio
import random
import re
import socket
import threading
from typing import Any

import hydra
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from envtorch import Action, EnvClient, Environment, Observation, State, create_app, serve

ROUNDS = 3


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
        return Light(text=f"light {self._light}", reward=reward, done=done)

    @property
    def state(self) -> State:
        return self._state


class ButtonsEnv(EnvClient[Press, Light, State]): ...


TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ ' <end>' }}{% endif %}{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)


def make_tokenizer() -> Any:
    """A token for each word of the game. `<end>` ends a turn."""
    words = ["<pad>", "<end>", "user", "assistant", "system", "light", *map(str, range(10))]
    words += [f'{{"button":{button}}}' for button in range(10)]
    tokenizer = Tokenizer(models.WordLevel({w: id for id, w in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", chat_template=TEMPLATE
    )


class ScriptedEngine:
    """Presses what is lit, in place of verl's servers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        light = re.findall(r"light (\d)", self._tokenizer.decode(prompt_ids))[-1]
        ids = self._tokenizer.convert_tokens_to_ids([f'{{"button":{light}}}', "<end>"])
        return TokenOutput(token_ids=ids, log_probs=[-0.1, 0.0], stop_reason="completed")


async def play(url: str) -> list[Any]:
    tokenizer = make_tokenizer()
    config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"prompt_length": 64, "response_length": 64}}, "data": {}}
    )
    loop = hydra.utils.instantiate(  # as verl makes it of agent_loops.yaml
        {"_target_": "envtorch.train.verl_loop.EnvTorchLoop", "client": ButtonsEnv, "base_url": url},
        trainer_config=DictConfigWrap(config),
        server_manager=ScriptedEngine(tokenizer),
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
    )
    rows = [{"extra_info": {"reset": {"seed": seed}}, "raw_prompt": []} for seed in range(16)]
    return list(await asyncio.gather(*(loop.run({"temperature": 1.0}, **row) for row in rows)))


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(Buttons, sessions=32)
    threading.Thread(target=serve, args=[app], kwargs={"listener": listener}, daemon=True).start()
    outputs = asyncio.run(play(f"http://127.0.0.1:{listener.getsockname()[1]}"))
    first = outputs[0]
    print("response:", make_tokenizer().decode(first.response_ids))
    print("mask:    ", first.response_mask)
    mean = sum(output.reward_score for output in outputs) / len(outputs)
    print(f"{len(outputs)} episodes, mean reward {mean:.2f}")


if __name__ == "__main__":
    main()
