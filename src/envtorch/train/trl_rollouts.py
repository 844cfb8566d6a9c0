"""TRL's `GRPOTrainer` on rollouts: its `rollout_func`, its reward function, and its dataset."""

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from envtorch.client import EnvClient
from envtorch.errors import ConfigurationError
from envtorch.extras import missing_extra
from envtorch.rollout import (
    BlockingRollouts,
    Completion,
    Prompt,
    RolloutSummary,
    Task,
    Trajectory,
    TransformersTemplate,
)
from envtorch.train.model_policy import ModelPolicy

try:
    from datasets import Dataset
    from trl import get_training_chat_template
    from trl.models import unwrap_model_for_generation
except ModuleNotFoundError as missing:
    raise missing_extra("trl", f"TRL's trainers need {missing.name!r}") from missing

__all__ = ["TRLRollouts"]

Policy = Callable[[Sequence[Prompt]], Sequence[Completion]]


class TRLRollouts:
    """Episodes for a `GRPOTrainer`, played in groups by the model that it trains.

        with TRLRollouts(CodingEnv, "http://127.0.0.1:8000", tasks=range(512), max_turns=4) as rollouts:
            trainer = GRPOTrainer(
                model,
                args=args,
                train_dataset=rollouts.dataset,
                rollout_func=rollouts.rollout_func,
                reward_funcs=rollouts.reward,
            )
            trainer.train()

    The prompts of a batch that are equal and adjacent are one group: it is reset once, and forked. A rollout
    that was lost, or whose environment raised, is a single masked token without a reward: TRL leaves it out
    of the group's baseline, and learns nothing from it.
    """

    def __init__(
        self,
        client: type[EnvClient[Any, Any, Any]],
        where: str | Sequence[str],
        *,
        tasks: Iterable[Task | Mapping[str, Any] | int],
        policy: Policy | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of `Rollouts`; a wrong one is refused here, and not in the first batch.

        tasks: what is played; `dataset` has a row for each.
        policy: completes prompts in place of the trainer's own model. Where its completions have no
            `logprobs`, TRL takes what was sampled for the distribution of the model that it trains.
        template: by default the chat template of the trainer's tokenizer, or TRL's own version of it where it
            rewrites earlier turns, as Qwen3's does.
        """
        chosen = self._complete if policy is None else policy
        BlockingRollouts.refuse_wrong(client, where, chosen, **options)
        self._client = client
        self._where = where
        self._options = options
        self._policy = policy
        rows = list(map(Task.of, tasks))
        self._rows = [task.id for task in rows]
        self._tasks = {task.id: task for task in rows}
        if twice := next((task.id for task in rows if self._tasks[task.id] != task), None):
            raise ConfigurationError(f"two different tasks have the id {twice!r}: give each its own")
        if not rows:
            raise ConfigurationError("there is nothing to play: `tasks` is empty")
        self._model: Policy | None = None
        """The trainer's model, during a call of `rollout_func`."""
        self._rollouts: BlockingRollouts | None = None
        self.played: list[Trajectory] = []
        """The rollouts of the batch before, in the order of its rows."""

    @property
    def dataset(self) -> Any:
        """The `train_dataset` of the trainer: the id of a task in each row."""
        return Dataset.from_dict({"prompt": self._rows})

    def rollout_func(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Play the tasks with these ids. What `GRPOTrainer(rollout_func=...)` calls."""
        count = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        with self._model_of(trainer):
            self.played = self._play(prompts, count, self._opened(trainer))
        return rows_of(self.played, trainer.processing_class.eos_token_id)

    def reward(
        self,
        *,
        env_reward: list[float | None],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """The reward of each rollout; None where it has none. What `GRPOTrainer(reward_funcs=...)` calls."""
        if log_metric is not None:
            for name, value in metrics_of(self.played).items():
                log_metric(name, value)
        return env_reward

    def close(self) -> None:
        """End the thread on which episodes are played."""
        if self._rollouts is not None:
            self._rollouts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _play(self, prompts: list[str], count: int, rollouts: BlockingRollouts) -> list[Trajectory]:
        places: dict[str, deque[int]] = defaultdict(deque)
        """The rows of each task that are not played yet."""
        by_size: dict[int, list[Task]] = defaultdict(list)
        for first, size in runs_of(prompts, count):
            by_size[size].append(self._task(prompts[first]))
            places[prompts[first]].extend(range(first, first + size))
        played: dict[int, Trajectory] = {}
        for size, tasks in by_size.items():
            for group in rollouts.groups(tasks, size=size):
                played |= {places[group.task.id].popleft(): member for member in group}
        return [played[row] for row in range(len(prompts))]

    def _task(self, prompt: str) -> Task:
        try:
            return self._tasks[prompt]
        except (KeyError, TypeError):
            raise ConfigurationError(
                f"{prompt!r} is not the id of a task: train on the `dataset` of these rollouts"
            ) from None

    def _opened(self, trainer: Any) -> BlockingRollouts:
        if self._rollouts is None:
            options = {"template": template_of(trainer.processing_class), **self._options}
            self._rollouts = BlockingRollouts(self._client, self._where, self._complete, **options)
        return self._rollouts

    def _complete(self, prompts: Sequence[Prompt]) -> Sequence[Completion]:
        policy = self._policy or self._model
        assert policy is not None
        return policy(prompts)

    @contextmanager
    def _model_of(self, trainer: Any) -> Iterator[None]:
        """Complete prompts with the trainer's model, as it is during the block."""
        if self._policy is not None:
            yield
            return
        if trainer.use_vllm:
            raise ConfigurationError(
                "these rollouts generate with the trainer's model: set use_vllm=False, or give a `policy`"
            )
        args = trainer.args
        named = {name: getattr(args, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
        generation = {name: value for name, value in named.items() if value is not None}
        with unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        ) as model:
            self._model = ModelPolicy(
                model,
                trainer.processing_class,
                max_new_tokens=args.max_completion_length,
                temperature=args.temperature,
                generation={**generation, **(args.generation_kwargs or {})},
            )
            try:
                yield
            finally:
                self._model = None


def template_of(tokenizer: Any) -> TransformersTemplate:
    """The tokenizer's chat template; TRL's version of it, which only appends, where TRL has one."""
    try:
        appending = get_training_chat_template(tokenizer)
    except ValueError:  # TRL has no version of this template; it may append as it is
        appending = None
    return TransformersTemplate(tokenizer, **({"chat_template": appending} if appending else {}))


def runs_of(prompts: Sequence[str], count: int) -> Iterator[tuple[int, int]]:
    """Where each group begins, and its size: prompts that are equal and adjacent, at most `count`.

    A group is smaller where a batch is divided among processes in the middle of it.
    """
    first = 0
    for _, equal in itertools.groupby(prompts):
        left = len(list(equal))
        while left:
            size = min(left, count)
            yield first, size
            first, left = first + size, left - size


def rows_of(played: Sequence[Trajectory], eos: int) -> dict[str, list[Any]]:
    """Rollouts as TRL's columns. TRL needs a token in each row: a masked one stands where there is none.

    A log-probability that the policy did not tell is NaN, for which TRL corrects nothing.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "env_reward")
    }
    for trajectory in played:
        tokens = trajectory.tokens.trimmed()
        start = tokens.prompt_length
        said = tokens.after(start)
        is_trained = bool(said.ids) and trajectory.reward is not None
        columns["prompt_ids"].append(list(tokens.ids[:start]) or [eos])
        columns["completion_ids"].append(list(said.ids) if is_trained else [eos])
        told = [math.nan if logprob is None else logprob for logprob in said.logprobs]
        columns["logprobs"].append(told if is_trained else [0.0])
        columns["env_mask"].append(list(said.mask) if is_trained else [0])
        columns["env_reward"].append(trajectory.reward)
    return columns


def metrics_of(played: Sequence[Trajectory]) -> dict[str, float]:
    """What a batch of rollouts came to, for TensorBoard and its like."""
    summary = RolloutSummary.of(played)
    count = max(summary.count, 1)
    return {
        **{f"rollout/ending_{ending}": ended / count for ending, ended in summary.endings.items()},
        "rollout/unscored": (summary.count - summary.scored) / count,
        "rollout/attempts_lost": float(summary.attempts_lost),
        "rollout/turns": summary.turns_mean,
        "rollout/step_p50_s": summary.step_p50_s,
        "rollout/step_p99_s": summary.step_p99_s,
    }
