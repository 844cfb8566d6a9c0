"""Rollouts for trainers: prompts in, tokens and rewards out."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from envtorch.compat.harness.adapters import HarnessAdapter
from envtorch.compat.harness.sessions import ResourceSession
from envtorch.compat.harness.values import (
    HarnessRolloutResult,
    HarnessRunLimits,
    ModelStep,
    VerifyResult,
)

__all__ = ["build_harness_rollout_func", "resolve_env_reward"]

RolloutFunction = Callable[..., dict[str, list[Any]]]


def resolve_env_reward(rollout: HarnessRolloutResult, verify: VerifyResult) -> float:
    """The episode's reward, which is the environment's and nobody else's.

    Where a tool told a reward, the verdict must tell the same: a verifier that makes up its own would
    train the model on something the environment never said.
    """
    told = [entry.result.metadata.get("reward") for entry in rollout.tool_trace]
    last = next((reward for reward in reversed(told) if reward is not None), None)
    if verify.env_reward is None and last is None:
        raise ValueError("the rollout did not produce an environment reward")
    if verify.env_reward is None:
        return float(last)  # type: ignore[arg-type]
    if last is not None and not math.isclose(last, verify.env_reward, rel_tol=1e-6, abs_tol=1e-9):
        raise ValueError(
            f"verify.env_reward must forward the environment reward: it is {verify.env_reward}, and the "
            f"environment's last word was {last}"
        )
    return float(last if last is not None else verify.env_reward)


def build_harness_rollout_func(
    session_factory: Any,
    harness_adapter: HarnessAdapter,
    model_step_builder: Callable[[Any, ResourceSession], ModelStep],
    limits: HarnessRunLimits | None = None,
) -> RolloutFunction:
    """A function as TRL takes it: a list of prompts and the trainer in, columns out."""

    def rollout_func(prompts: Sequence[Any], trainer: Any = None, **_: Any) -> dict[str, list[Any]]:
        rows = [
            _play(prompt, trainer, session_factory, harness_adapter, model_step_builder, limits)
            for prompt in prompts
        ]
        names = ("prompt_ids", "completion_ids", "logprobs", "env_reward", "verify_metrics")
        return {name: [row[name] for row in rows] for name in names}

    return rollout_func


def _play(
    prompt: Any,
    trainer: Any,
    session_factory: Any,
    adapter: HarnessAdapter,
    model_step_builder: Callable[[Any, ResourceSession], ModelStep],
    limits: HarnessRunLimits | None,
) -> dict[str, Any]:
    session = session_factory.create(prompt)
    try:
        rollout = adapter.run_white_box(
            model_step=model_step_builder(trainer, session), session=session, limits=limits
        )
        verdict = session.verify(rollout.messages)
    finally:
        session.close()
    return {
        "prompt_ids": rollout.prompt_ids,
        "completion_ids": rollout.completion_ids,
        "logprobs": rollout.logprobs,
        "env_reward": resolve_env_reward(rollout, verdict),
        "verify_metrics": verdict.metrics,
    }
