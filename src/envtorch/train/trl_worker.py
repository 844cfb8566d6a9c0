"""TRL's `AsyncGRPOTrainer` on rollouts: a worker that plays beside the trainer, and takes its weights."""

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any

from envtorch.client import EnvClient
from envtorch.errors import ConfigurationError, TimedOut
from envtorch.extras import missing_extra
from envtorch.rollout import Completion, Prompt, Rollouts, RolloutSummary, Task, TrajectoryGroup
from envtorch.train.model_policy import ModelPolicy

try:
    import numpy as np
    import torch
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
except ModuleNotFoundError as missing:
    raise missing_extra("trl", f"TRL's trainers need {missing.name!r}") from missing

__all__ = ["TRLRolloutWorker", "WeightCopy"]

PUT_S = 0.5
"""How long a full buffer is waited for before looking whether the worker was stopped."""


class TRLRolloutWorker:
    """Plays groups without end, on a thread of this process, while the trainer learns from those before.

        policy = ModelPolicy(copy_of_the_model, tokenizer, max_new_tokens=256)
        worker = TRLRolloutWorker(
            CodingEnv, url, policy, tasks=range(512), group_size=8, template=TransformersTemplate(tokenizer)
        )
        trainer = AsyncGRPOTrainer(
            model, args=args, rollout_worker=worker, weight_transfer=worker.weights, ...
        )

    `policy` has a copy of the model that is trained. For new weights the rollouts are parked and go on
    with their episodes; a sample has the version of the oldest weights that said one of its tokens. Members
    of a group that have no reward are left out of its baseline, and not given to the trainer.
    """

    def __init__(
        self,
        client: type[EnvClient[Any, Any, Any]],
        where: str | Sequence[str],
        policy: ModelPolicy,
        *,
        tasks: Iterable[Task | Mapping[str, Any] | int],
        group_size: int = 8,
        buffer: int = 64,
        scale_rewards: bool = True,
        concurrency: int = 64,
        **options: Any,
    ) -> None:
        """`options` are those of `Rollouts`; `template` is needed.

        tasks: a sequence is played again and again; an iterator is played to its end.
        group_size: the trainer's `num_generations`.
        buffer: the most samples that wait for the trainer.
        scale_rewards: divide advantages by the deviation of their group's rewards.
        concurrency: the most sessions at once. With more of them than samples in a batch, samples are
            older than one update of the weights.
        """
        if options.get("template") is None:
            raise ConfigurationError("a trainer learns from tokens: give the worker a `template`")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(buffer)
        self.metrics_queue: queue.Queue[dict[str, float | tuple[float, float]]] = queue.Queue()
        self.weights = WeightCopy(self, policy)
        """The `weight_transfer` of the trainer."""
        self._policy = policy
        self._tasks = tasks
        self._group_size = group_size
        self._scale_rewards = scale_rewards
        self._make = partial(
            Rollouts, client, where, self._complete, **{"concurrency": concurrency, **options}
        )
        self._lock = threading.Lock()
        """Held to read or change what the thread has, as long as it plays."""
        self._rollouts: Rollouts | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playing: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()
        self._version = 0
        self._error: BaseException | None = None
        self._last_sample_at = time.monotonic()
        self._unscored = ""
        """Why the last rollout without a reward has none."""

    def start(self) -> None:
        """Begin to play."""
        started = threading.Event()
        self._is_stopped.clear()
        self._error = None
        self._last_sample_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(started,), name="envtorch-trl", daemon=True)
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """Cancel what is played, end its sessions, and end the thread."""
        self._is_stopped.set()
        with self._lock:
            if self._loop is not None and self._playing is not None:
                self._loop.call_soon_threadsafe(self._playing.cancel)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def update_model_version(self, model_version: int) -> None:
        """Go on, with weights of this version."""
        with self._lock:
            self._version = model_version
            if self._rollouts is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._rollouts.resume, model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the worker, or `TimedOut` when there was no sample for this long."""
        if self._error is not None:
            raise self._error
        idle_s = time.monotonic() - self._last_sample_at
        if idle_s > stale_after_s:
            why = f"the last one was {self._unscored}" if self._unscored else "none has ended"
            raise TimedOut(f"no rollout has given a sample for {idle_s:.0f} s: {why}")

    def park(self) -> None:
        """Hold the policy's calls back until `update_model_version`, and wait for the one that runs."""
        with self._lock:
            if self._rollouts is None or self._loop is None:
                return
            parking = asyncio.run_coroutine_threadsafe(self._rollouts.park(), self._loop)
        with suppress(CancelledError):  # the worker has ended meanwhile; `check_health` says why
            parking.result()

    def _run(self, started: threading.Event) -> None:
        try:
            asyncio.run(self._produce(started))
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # the trainer's thread raises it, in `check_health`
            self._error = error
        finally:
            started.set()

    async def _produce(self, started: threading.Event) -> None:
        try:
            await self._play(started)
        finally:
            with self._lock:
                self._loop = self._playing = self._rollouts = None

    async def _play(self, started: threading.Event) -> None:
        tasks = itertools.cycle(self._tasks) if isinstance(self._tasks, Sequence) else self._tasks
        async with self._make() as rollouts:
            with self._lock:
                self._loop, self._playing = asyncio.get_running_loop(), asyncio.current_task()
                self._rollouts = rollouts
                rollouts.resume(self._version)
            started.set()
            numbers = itertools.count()
            async for group in rollouts.groups(tasks, size=self._group_size):
                self._note(group)
                for sample in samples_of(group, next(numbers), scale=self._scale_rewards):
                    await asyncio.to_thread(self._put, sample)
        self._error = ConfigurationError(
            "every task has been played: give the worker a sequence, which it repeats, or more of them"
        )

    def _note(self, group: TrajectoryGroup) -> None:
        self.metrics_queue.put(group_metrics(group))
        for member in group:
            if member.reward is None:
                self._unscored = f"{member.cause}, {member.blame}"

    async def _complete(self, prompts: Sequence[Prompt]) -> Sequence[Completion]:
        return await asyncio.to_thread(self._policy, prompts)

    def _put(self, sample: Any) -> None:
        while not self._is_stopped.is_set():
            try:
                self.rollout_buffer.put(sample, timeout=PUT_S)
            except queue.Full:
                continue
            self._last_sample_at = time.monotonic()
            return


class WeightCopy:
    """Copies the trainer's weights into the model that a worker plays with."""

    def __init__(self, worker: TRLRolloutWorker, policy: ModelPolicy) -> None:
        self._worker = worker
        self._policy = policy

    def init_weight_transfer(self) -> None:
        """Nothing: both models are in this process."""

    def pause(self) -> None:
        """Hold the policy's calls back; episodes stay where they are."""
        self._worker.park()

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Copy weights, by the names of the model's parameters."""
        parameters = dict(self._policy.model.named_parameters())
        with self._policy.lock, torch.no_grad():
            for name, weight in iterator:
                if name not in parameters:
                    raise ConfigurationError(
                        f"the worker's model has no parameter {name!r}: give it a copy of the trainer's"
                    )
                parameters[name].copy_(weight)

    def resume(self) -> None:
        """Nothing: the trainer calls `update_model_version` next, and with the version the rollouts go on."""

    def destroy(self) -> None:
        """Nothing."""


def samples_of(group: TrajectoryGroup, number: int, *, scale: bool) -> Iterator[Any]:
    """The members of a group that can be learned from, as TRL's samples."""
    for member, advantage in zip(group, group.advantages(scale=scale), strict=True):
        tokens = member.tokens.trimmed()
        if advantage is None or not tokens.ids:
            continue
        if not tokens.has_logprobs:
            raise ConfigurationError(
                "AsyncGRPOTrainer needs the log-probability of every token that was said: give each "
                "Completion of the policy its `logprobs`, as ModelPolicy does"
            )
        assert member.reward is not None
        yield RolloutSample(
            prompt=list(member.messages[:1]),
            completion=list(member.messages[1:]),
            input_ids=np.array(tokens.ids),
            completion_mask=np.array(tokens.mask),
            old_log_probs=np.array(tokens.logprobs, dtype=np.float32),
            advantage=advantage,
            model_version=tokens.oldest_version,
            group_id=number,
            metrics={"reward": member.reward},
            enqueued_at=time.time(),
        )


def group_metrics(group: TrajectoryGroup) -> dict[str, float | tuple[float, float]]:
    """What a group came to: counts, and rates as a numerator and a denominator."""
    scored = [reward for reward in group.rewards if reward is not None]
    summary = RolloutSummary.of(group)
    count = float(len(group))
    return {
        **{f"rollout/ending_{ending}": (float(ended), count) for ending, ended in summary.endings.items()},
        "rollout/reward": (sum(scored), float(len(scored))),
        "rollout/unscored_total": count - len(scored),
        "rollout/attempts_lost_total": float(summary.attempts_lost),
        "rollout/turns": (float(sum(len(member.turns) for member in group)), count),
    }
