"""What an evaluation came to."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from envtorch.errors import EndpointFailed
from envtorch.evaluation.estimates import Estimate, mean_estimate, pass_at_k
from envtorch.rollout import Ending, RolloutSummary, Task, Trajectory

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["EvalReport", "TaskResult"]

WORST = 10
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The samples of one task."""

    task: Task
    samples: tuple[Trajectory, ...]
    passes_at: float
    """The reward from which on a sample passes."""

    @property
    def scored(self) -> int:
        """How many samples say something about the policy."""
        return sum(sample.reward is not None for sample in self.samples)

    @property
    def passed(self) -> int:
        return sum(sample.reward is not None and sample.reward >= self.passes_at for sample in self.samples)

    @property
    def mean_reward(self) -> float | None:
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def rate(self) -> float | None:
        """The share of scored samples that passed."""
        return self.passed / self.scored if self.scored else None


@dataclass(frozen=True, slots=True)
class EvalReport:
    """How a policy did on tasks."""

    settings: Mapping[str, Any]
    """What was evaluated: target, model, samples, ..."""
    tasks: tuple[TaskResult, ...]
    pass_at: Mapping[int, Estimate]
    """pass@k by k, over the tasks that have at least k scored samples."""
    reward_mean: float | None
    summary: RolloutSummary
    seconds: float
    """How long the evaluation took, all its runs together."""
    cost: float | None
    """By the prices that were given; None when there were none."""

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        tasks: Sequence[Task],
        trajectories: Sequence[Trajectory],
        *,
        seconds: float = 0.0,
    ) -> Self:
        """The report of these trajectories, in the order of `tasks`. Those without any are left out.

        Of `settings`, `passes_at`, `price_in` and `price_out` are used, the prices for a million tokens.
        """
        by_task: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            by_task.setdefault(trajectory.task.id, []).append(trajectory)
        passes_at = float(settings.get("passes_at", 1.0))
        results = tuple(
            TaskResult(task, tuple(sorted(by_task[task.id], key=lambda sample: sample.member)), passes_at)
            for task in tasks
            if task.id in by_task
        )
        summary = RolloutSummary.of([sample for result in results for sample in result.samples])
        return cls(
            settings=settings,
            tasks=results,
            pass_at=_pass_at(results),
            reward_mean=summary.reward_mean,
            summary=summary,
            seconds=seconds,
            cost=_cost(settings, summary),
        )

    @property
    def worst(self) -> list[TaskResult]:
        """Tasks that did not always pass, the worst first: those to look at."""
        failed = [result for result in self.tasks if result.rate is None or result.rate < 1.0]
        failed.sort(key=lambda result: (result.rate is None, result.rate or 0.0, result.mean_reward or 0.0))
        return failed[:WORST]

    @property
    def endings(self) -> Mapping[str, int]:
        """How many samples ended for which cause, the most frequent first."""
        counted = Counter(sample.cause for result in self.tasks for sample in result.samples)
        return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))

    @property
    def lost(self) -> int:
        """How many samples the infrastructure lost: the next run of the evaluation plays them again."""
        return self.summary.endings[Ending.LOST]

    @property
    def failed_endpoint(self) -> EndpointFailed | None:
        """Why the model's endpoint lost samples, if it did: the environment's servers are not at fault."""
        samples = (sample for result in self.tasks for sample in result.samples)
        blames = (sample.blame for sample in samples if sample.ending is Ending.LOST)
        return next((blame for blame in blames if isinstance(blame, EndpointFailed)), None)

    @property
    def lacks_rewards(self) -> bool:
        """Whether episodes were played to their end, and nothing passed because nothing gave a reward."""
        samples = [sample for result in self.tasks for sample in result.samples]
        is_rewarded = any(
            sample.score is not None or any(turn.reward is not None for turn in sample.turns)
            for sample in samples
        )
        was_played = any(sample.ending in (Ending.DONE, Ending.MAX_TURNS) for sample in samples)
        return was_played and not is_rewarded and not any(result.passed for result in self.tasks)

    def told(self) -> dict[str, Any]:
        """The report as JSON values. What depends on the clock is under `time`, and nowhere else."""
        summary = self.summary
        return {
            "settings": dict(self.settings),
            "tasks": len(self.tasks),
            "samples": summary.count,
            "scored": summary.scored,
            "pass_at": {str(k): estimate._asdict() for k, estimate in self.pass_at.items()},
            "reward_mean": self.reward_mean,
            "reward_deviation": summary.reward_deviation,
            "endings": dict(self.endings),
            "attempts_lost": summary.attempts_lost,
            "turns_mean": summary.turns_mean,
            "tokens_read": summary.tokens_read,
            "tokens_said": summary.tokens_said,
            "cost": self.cost,
            "worst": [result.task.id for result in self.worst],
            "results": [
                {
                    "id": result.task.id,
                    "passed": result.passed,
                    "scored": result.scored,
                    "rewards": [sample.reward for sample in result.samples],
                    "endings": [sample.cause for sample in result.samples],
                }
                for result in self.tasks
            ],
            "time": {
                "seconds": self.seconds,
                **{
                    name: value
                    for name, value in dataclasses.asdict(summary).items()
                    if name.endswith(("p50_s", "p99_s"))
                },
            },
        }

    def table(self) -> "Table":
        """The figures, for `rich` to print."""
        from rich.markup import escape
        from rich.table import Table

        summary = self.summary
        table = Table(box=None, show_header=False)
        table.add_column(style="bold")
        for k, estimate in self.pass_at.items():
            told = f"{estimate.value:6.1%}   95 % interval {estimate.low:.1%} to {estimate.high:.1%}"
            table.add_row(f"pass@{k}", told)
        table.add_row("tasks, samples", f"{len(self.tasks)}, {summary.count}")
        mean = "none is scored" if self.reward_mean is None else f"{self.reward_mean:.3f}"
        table.add_row("mean reward", mean)
        for cause, count in self.endings.items():
            table.add_row(escape(cause), str(count))
        table.add_row("turns", f"{summary.turns_mean:.1f}")
        table.add_row("tokens read, said", f"{summary.tokens_read:,}, {summary.tokens_said:,}")
        if self.cost is not None:
            table.add_row("cost", f"{self.cost:.4f}")
        table.add_row("time", f"{self.seconds:.1f} s")
        return table


def _pass_at(results: Sequence[TaskResult]) -> dict[int, Estimate]:
    most = max((result.scored for result in results), default=0)
    ks = sorted({k for k in (1, 2, 4, 8, 16, 32, 64, 128, most) if 1 <= k <= most})
    estimates: dict[int, Estimate] = {}
    for k in ks:
        counted = [result for result in results if result.scored >= k]
        rates = [pass_at_k(result.scored, result.passed, k) for result in counted]
        estimate = mean_estimate(rates, sum(result.scored // k for result in counted))
        if estimate is not None:
            estimates[k] = estimate
    return estimates


def _cost(settings: Mapping[str, Any], summary: RolloutSummary) -> float | None:
    price_in, price_out = settings.get("price_in"), settings.get("price_out")
    if price_in is None and price_out is None:
        return None
    return ((price_in or 0.0) * summary.tokens_read + (price_out or 0.0) * summary.tokens_said) / MILLION
