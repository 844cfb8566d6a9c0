"""TRL itself, timed with a model that only takes its time, and with its own loop or ours.

Runs where TRL is installed: `python -m bench.trl_loops LOOP URL STEP_S ROLLOUTS SIZE TURNS ROUNDS`. The loop
`factory` is `GRPOTrainer(environment_factory=...)`: its environments hold a session each, opened in a batch
before, which is not counted, and a batch is timed from its first `reset` to its last `get_reward`. The loop
`rollout_func` is `GRPOTrainer(rollout_func=TRLRollouts(...).rollout_func)`: a batch is one call of it, and
opens its sessions. The loss is in neither. In its own loop TRL asks the model once more than there are turns,
since an episode ends when the model answers without a call of a tool.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tests.train.tiny_models import make_model, make_tool_tokenizer
from transformers import Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from bench.paced import PacedEnv, Press
from envtorch.rollout import ChatFormat, Completion, Prompt
from envtorch.rollout.chat_formats import observation_text
from envtorch.train import TRLRollouts
from envtorch.types import StepResult

LOOP, URL, STEP_S = sys.argv[1], sys.argv[2], float(sys.argv[3])
ROLLOUTS, SIZE, TURNS, ROUNDS = map(int, sys.argv[4:])
SEEDS = range(ROLLOUTS // SIZE)
CALLS = [f'<tool_call>\n{{"name": "press", "arguments": {{"button": {n}}}}}\n</tool_call>' for n in range(10)]
CHAT_TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
TOKENIZER = make_tool_tokenizer(CALLS, CHAT_TEMPLATE.read_text())
BUTTONS = dict(zip(TOKENIZER.convert_tokens_to_ids(list("0123456789")), range(10), strict=True))
SAID = TOKENIZER.convert_tokens_to_ids(CALLS)


def completions(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """What the model says, after 5 ms and 0.1 ms for each prompt: a call with the prompt's last number."""
    time.sleep(0.005 + 0.0001 * len(prompts))
    lights = [next(BUTTONS[id] for id in reversed(ids) if id in BUTTONS) for ids in prompts]
    return [[SAID[light], TOKENIZER.eos_token_id] for light in lights]


class PacedModel(Qwen2ForCausalLM):
    """A model whose `generate` only takes its time."""

    def generate(self, input_ids: Any, **_: Any) -> Any:
        return torch.cat([input_ids, torch.tensor(completions(input_ids.tolist()))], dim=1)


class PacedTool:
    """One session, for TRL's own loop."""

    times: list[float] = []
    """When each reset began, and each reward was read."""

    def __init__(self) -> None:
        self._env = PacedEnv(URL).connect()

    def reset(self, seed: int, **_: Any) -> str:
        self.times.append(time.perf_counter())
        light = self._env.reset(seed=seed, rounds=TURNS, step_s=STEP_S).observation.light
        self._reward = 0.0
        return f"light: {light}"

    def press(self, button: int) -> str:
        """
        Press a button.

        Args:
            button: The number of the light that is on.

        Returns:
            The next light.
        """
        result = self._env.step(Press(button=button))
        self._reward += result.reward or 0.0
        return f"light: {result.observation.light}"

    def get_reward(self) -> float:
        self.times.append(time.perf_counter())
        return self._reward


class CallFormat(ChatFormat):
    """The same calls, for our loop."""

    def actions(self, completion: Completion) -> Sequence[Press]:
        return [Press(button=CALLS.index(completion.text))]

    def answers(self, completion: Completion, results: Sequence[StepResult[Any]]) -> list[dict[str, Any]]:
        return [{"role": "tool", "content": observation_text(result.observation)} for result in results]


def policy(prompts: Sequence[Prompt]) -> list[Completion]:
    return [Completion(ids=ids, logprobs=[0.0, 0.0]) for ids in completions([p.ids or () for p in prompts])]


def train(output: str, **loop: Any) -> list[float]:
    """Train with one loop; the mean reward of each batch but the first."""
    model = make_model(TOKENIZER, width=16, layers=1)
    model.__class__ = PacedModel
    trainer = GRPOTrainer(
        model,
        args=GRPOConfig(
            output_dir=output,
            max_steps=ROUNDS + 1,
            per_device_train_batch_size=ROLLOUTS,
            num_generations=SIZE,
            max_completion_length=1024,
            max_tool_calling_iterations=TURNS,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        ),
        processing_class=TOKENIZER,
        **loop,
    )
    trainer.train()
    return [row["reward"] for row in trainer.state.log_history if "reward" in row][1:]


def with_factory(output: str) -> tuple[list[float], list[float]]:
    """TRL's own loop: the seconds of each batch, and its mean reward."""
    prompts = [[{"role": "user", "content": ""}] for _ in SEEDS]
    rows = Dataset.from_dict({"prompt": prompts, "seed": list(SEEDS)})
    rewards = train(output, train_dataset=rows, environment_factory=PacedTool)
    events = 2 * ROLLOUTS  # of a batch: a reset and a reward for each rollout
    batches = [PacedTool.times[first : first + events] for first in range(0, len(PacedTool.times), events)]
    return [batch[-1] - batch[0] for batch in batches[1:]], rewards


def with_rollout_func(output: str) -> tuple[list[float], list[float]]:
    """Our loop in TRL: the seconds of each batch, and its mean reward."""
    seconds: list[float] = []
    tasks = [{"seed": seed, "rounds": TURNS, "step_s": STEP_S} for seed in SEEDS]
    options: dict[str, Any] = {"format": CallFormat(), "max_turns": TURNS, "concurrency": 2 * ROLLOUTS}
    with TRLRollouts(PacedEnv, URL, tasks=tasks, policy=policy, **options) as rollouts:

        def play(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
            began = time.perf_counter()
            columns = rollouts.rollout_func(prompts, trainer)
            seconds.append(time.perf_counter() - began)
            return columns

        rewards = train(
            output, train_dataset=rollouts.dataset, rollout_func=play, reward_funcs=rollouts.reward
        )
    return seconds[1:], rewards


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        seconds, rewards = (with_factory if LOOP == "factory" else with_rollout_func)(scratch)
    told = {"seconds": min(seconds), "reward": sum(rewards) / len(rewards), "version": trl.__version__}
    print(json.dumps(told))
