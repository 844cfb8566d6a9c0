"""A policy that is a `transformers` model in this process."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from envtorch.errors import ConfigurationError
from envtorch.extras import missing_extra
from envtorch.rollout import Completion, Prompt

try:
    import torch
except ModuleNotFoundError as missing:
    raise missing_extra("trl", "a local model needs torch") from missing

__all__ = ["ModelPolicy"]

ENDS_BY_OTHER_MEANS = {"stop_strings", "stopping_criteria"}
"""Options of `generate` that end a row of a batch at any token."""


class ModelPolicy:
    """Completes a batch of prompts with one `generate` of a causal language model.

        policy = ModelPolicy(model, tokenizer, max_new_tokens=256)
        with BlockingRollouts(CodingEnv, url, policy, template=TransformersTemplate(tokenizer)) as rollouts:
            ...

    It is given token ids and returns the ids that were sampled, the one that ended the turn included:
    nothing is tokenised. A log-probability is that of the distribution the token was drawn from, with
    temperature and `generation` options applied. Calls take turns: the model is never used by two threads.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        """`generation` has further options of `model.generate`, such as `top_p`.

        The tokenizer's `eos_token` ends a turn, or each token of `generation["eos_token_id"]`. Give it where
        the chat template ends turns with another token: `{"eos_token_id": [1, 106]}`.
        """
        if max_new_tokens < 1 or temperature <= 0:
            raise ConfigurationError("max_new_tokens is at least 1, and the temperature above 0")
        options = {"eos_token_id": tokenizer.eos_token_id, **(generation or {})}
        self._ends = _ends(options["eos_token_id"])
        if other := sorted(ENDS_BY_OTHER_MEANS.intersection(options)):
            raise ConfigurationError(
                f"{' and '.join(other)}: turns ended so cannot be told from padding; give the tokens "
                "that end a turn as eos_token_id"
            )
        self.model = model
        self.lock = threading.Lock()
        """Held while the model generates. Hold it to replace the weights."""
        pad = tokenizer.pad_token_id
        self._pad: int = min(self._ends) if pad is None else pad
        self._options = {
            "do_sample": True,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
            "max_new_tokens": max_new_tokens,
            "pad_token_id": self._pad,
            **options,
        }

    def __call__(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One completion for each prompt."""
        ids = [prompt.ids for prompt in prompts]
        given = [each for each in ids if each is not None]
        if len(given) != len(ids):
            raise ConfigurationError("a local model completes token ids: give the rollouts a `template`")
        with self.lock, torch.no_grad():
            was_training = self.model.training
            self.model.eval()
            try:
                return self._generate(given)
            finally:
                self.model.train(was_training)

    def _generate(self, prompts: Sequence[Sequence[int]]) -> list[Completion]:
        longest = max(map(len, prompts))
        rows = [[self._pad] * (longest - len(ids)) + list(ids) for ids in prompts]
        seen = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
        device = self.model.device
        generated = self.model.generate(
            input_ids=torch.tensor(rows, device=device),
            attention_mask=torch.tensor(seen, device=device),
            return_dict_in_generate=True,
            output_scores=True,
            **self._options,
        )
        said = generated.sequences[:, longest:]
        drawn_from = torch.stack(generated.scores, dim=1).float().log_softmax(-1)
        logprobs = drawn_from.gather(-1, said.unsqueeze(-1)).squeeze(-1)
        return list(map(self._completion, said.tolist(), logprobs.tolist()))

    def _completion(self, ids: list[int], logprobs: list[float]) -> Completion:
        """What was sampled: up to the end of the turn, if it was reached. The rest is padding."""
        end = next((place for place, id in enumerate(ids, start=1) if id in self._ends), None)
        return Completion(ids=ids[:end], logprobs=logprobs[:end], is_cut=end is None)


def _ends(eos: Any) -> frozenset[int]:
    """The tokens that end a turn, from one id or several."""
    ends = frozenset([eos] if isinstance(eos, int) else eos or ())
    if not ends:
        raise ConfigurationError(
            "nothing ends a turn: the tokenizer has no eos_token; give generation={'eos_token_id': ...}"
        )
    return ends
