"""OpenEnv's record of model calls to train on, and the sampling that such calls allow."""

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envtorch.compat.harness.values import TraceEntry

__all__ = ["TrainingTrace", "TrainingTurn", "training_sampling"]

NEUTRAL: Mapping[str, float | int] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Values with which tokens are drawn from the model's own distribution."""


class TrainingTurn(BaseModel):
    """One call of a model: ids as the engine had them. `loss_mask` is for prompt and completion together."""

    model_config = ConfigDict(strict=True, extra="forbid")

    node_id: str = Field(min_length=1)
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    loss_mask: list[int]
    request: dict[str, Any] = {}
    response: dict[str, Any] = {}
    metadata: dict[str, Any] = {}

    @model_validator(mode="after")
    def _is_aligned(self) -> Self:
        prompt, said = len(self.prompt_token_ids), len(self.completion_token_ids)
        if not prompt or any(id < 0 for id in (*self.prompt_token_ids, *self.completion_token_ids)):
            raise ValueError("a turn has prompt tokens, and a token id is not negative")
        if len(self.per_token_logps) != said:
            raise ValueError(f"{len(self.per_token_logps)} log-probabilities for {said} completion tokens")
        if any(not math.isfinite(logp) or logp > 0 for logp in self.per_token_logps):
            raise ValueError("a log-probability is finite, and not above 0")
        if len(self.loss_mask) != prompt + said:
            raise ValueError("loss_mask covers prompt and completion")
        if not set(self.loss_mask) <= {0, 1} or any(self.loss_mask[:prompt]):
            raise ValueError("loss_mask is 0 for the prompt, and 0 or 1 for the completion")
        return self


class TrainingTrace(BaseModel):
    """The model calls of one rollout."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = 1
    turns: list[TrainingTurn]

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        if len({turn.node_id for turn in self.turns}) < len(self.turns):
            raise ValueError("two turns have the same node_id")
        return self

    @classmethod
    def from_entries(cls, entries: list[TraceEntry]) -> Self:
        """The trace of entries that tell their ids, mask and `metadata["node_id"]`."""
        known = {name for name in TrainingTurn.model_fields if name != "node_id"}
        turns = [
            TrainingTurn(
                node_id=entry["metadata"]["node_id"],
                **{name: value for name, value in entry.items() if name in known},  # type: ignore[arg-type]
            )
            for entry in entries
        ]
        return cls(turns=turns)

    def to_trace_entries(self) -> list[TraceEntry]:
        """The entries again, for reward functions and viewers."""
        entries: list[TraceEntry] = []
        for turn in self.turns:
            entry: Any = turn.model_dump(exclude={"node_id"})
            entry["metadata"]["node_id"] = turn.node_id
            entries.append(entry)
        return entries


def training_sampling(sampling: dict[str, Any] | None) -> dict[str, float | int]:
    """The sampling options of a rollout to train on: a temperature, and nothing that narrows the choice.

    Raises `ValueError` for any other option or value. None is no wish at all: an empty dictionary.
    """
    if sampling is None:
        return {}
    if not isinstance(sampling, dict):
        raise ValueError("sampling options are a dictionary")
    if unknown := sorted(sampling.keys() - NEUTRAL.keys() - {"temperature"}):
        raise ValueError(f"not an option of training: {', '.join(unknown)}")
    for name, value in sampling.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is a number, not {value!r}")
        is_off = name == "top_k" and value == 0
        if name != "temperature" and value != NEUTRAL[name] and not is_off:
            raise ValueError(f"to train on what is sampled, {name} must be {NEUTRAL[name]}")
    temperature = sampling.get("temperature", 0.0)
    if not 0 < temperature < math.inf:
        raise ValueError("to train on what is sampled, the temperature must be finite and above 0")
    return {"temperature": float(temperature), **NEUTRAL}
