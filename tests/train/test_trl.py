"""TRL drives the adapters. Run by `make test-train` in an environment that has it."""

import pytest

pytest.importorskip("trl", reason="TRL is installed by `make test-train`, in an environment of its own")

import torch

from envtorch.errors import ConfigurationError
from envtorch.rollout import Prompt
from envtorch.train import ModelPolicy
from tests.train.tiny_models import make_model, make_tokenizer

pytestmark = pytest.mark.train

TOKENIZER = make_tokenizer(["0", "1", "2", "3"])


def prompt(*words: str) -> Prompt:
    return Prompt((), tuple(TOKENIZER.convert_tokens_to_ids(list(words))))


def test_a_local_model_tells_the_probability_of_what_it_drew_from_prompts_of_any_length() -> None:
    model = make_model(TOKENIZER)
    prompts = [prompt("user", "0", "1", "2", "assistant"), prompt("user"), prompt("3", "3")] * 8
    completions = ModelPolicy(model, TOKENIZER, max_new_tokens=6, temperature=0.7)(prompts)
    assert len({len(completion.ids) for completion in completions}) > 1
    for given, completion in zip(prompts, completions, strict=True):
        assert given.ids is not None
        assert completion.logprobs is not None
        ids = [*given.ids, *completion.ids]
        logits = model(input_ids=torch.tensor([ids])).logits[0, len(given.ids) - 1 : -1] / 0.7
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert TOKENIZER.eos_token_id not in completion.ids[:-1]
        assert len(completion.ids) == 6 or completion.ids[-1] == TOKENIZER.eos_token_id


def test_a_local_model_is_left_in_the_mode_it_was_in() -> None:
    model = make_model(TOKENIZER).train()
    ModelPolicy(model, TOKENIZER, max_new_tokens=1)([prompt("user")])
    assert model.training


def test_a_local_model_asks_for_a_template_where_there_are_only_messages() -> None:
    with pytest.raises(ConfigurationError, match="template"):
        ModelPolicy(make_model(TOKENIZER), TOKENIZER)([Prompt(({"role": "user", "content": "0"},))])
