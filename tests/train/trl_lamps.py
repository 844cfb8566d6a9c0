"""What the tests of the TRL adapters share: words, a policy that is right, a trainer's settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from envtorch.rollout import Completion, Prompt
from tests.train.lamps import WORDS
from tests.train.tiny_models import make_tokenizer

__all__ = ["END", "QUICK", "TOKENIZER", "prompt", "right", "settings"]

TOKENIZER = make_tokenizer(WORDS)
END = TOKENIZER.eos_token_id
QUICK = {"wait_s": 60.0, "reconnect_s": 0.5}


def ids(*words: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.convert_tokens_to_ids(list(words)))


def prompt(*words: str) -> Prompt:
    return Prompt((), ids(*words))


def right(prompts: Sequence[Prompt]) -> list[Completion]:
    """A policy that presses the right button."""
    words = [str(given.messages[-1]["content"]).replace("lamp", "press") for given in prompts]
    return [Completion(ids=[*ids(word), END], logprobs=[-0.5, -0.25]) for word in words]


def settings(path: Path, **others: Any) -> Any:
    usual = {
        "output_dir": str(path),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "gradient_checkpointing": False,
    }
    return GRPOConfig(**{**usual, **others})
