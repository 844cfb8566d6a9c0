"""Many trajectories in a few figures."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from envtorch.rollout.completions import BatchStatistics
from envtorch.rollout.trajectories import Ending, Trajectory

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["RolloutSummary"]


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """What a batch of rollouts came to."""

    count: int
    scored: int
    """Rollouts that have a reward."""
    reward_mean: float | None
    """Of those that are scored; None when none is."""
    reward_deviation: float | None
    causes: Mapping[str, int]
    """How many rollouts ended for which reason, the most frequent first."""
    endings: Mapping[Ending, int]
    """How many rollouts ended how: every ending has a count."""
    attempts_lost: int
    """Attempts that were played again, or given up, because the infrastructure failed. One at the common
    beginning of a group counts for each of its rollouts."""
    turns_mean: float
    tokens_read: int
    """Tokens of the prompts; 0 when the policy does not tell."""
    tokens_said: int
    """Tokens that the policy produced."""
    step_p50_s: float
    step_p99_s: float
    policy_p50_s: float
    """Seconds from asking for a completion to having it: its batch included."""
    policy_p99_s: float
    batch_mean: float | None = None
    """Prompts in a call of the policy; None when that is not known."""
    batch_largest: int | None = None

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], batches: BatchStatistics | None = None) -> Self:
        """The summary of these trajectories; `batches` are those of the rollouts, `Rollouts.batches`."""
        rollouts = list(trajectories)
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        turns = [turn for rollout in rollouts for turn in rollout.turns]
        steps, policy = sorted(turn.step_s for turn in turns), sorted(turn.policy_s for turn in turns)
        sizes = batches.sizes if batches is not None else []
        causes = Counter(rollout.cause for rollout in rollouts)
        endings = Counter(rollout.ending for rollout in rollouts)
        return cls(
            count=len(rollouts),
            scored=len(rewards),
            reward_mean=statistics.fmean(rewards) if rewards else None,
            reward_deviation=statistics.pstdev(rewards) if rewards else None,
            causes=dict(causes.most_common()),
            endings={ending: endings[ending] for ending in Ending},
            attempts_lost=sum(len(rollout.lost) + (rollout.ending is Ending.LOST) for rollout in rollouts),
            turns_mean=statistics.fmean(len(rollout.turns) for rollout in rollouts) if rollouts else 0.0,
            tokens_read=sum(turn.prompt_tokens for turn in turns),
            tokens_said=sum(turn.said_tokens for turn in turns),
            step_p50_s=_percentile(steps, 0.50),
            step_p99_s=_percentile(steps, 0.99),
            policy_p50_s=_percentile(policy, 0.50),
            policy_p99_s=_percentile(policy, 0.99),
            batch_mean=statistics.fmean(sizes) if sizes else None,
            batch_largest=max(sizes, default=None),
        )

    def table(self) -> "Table":
        """The figures, for `rich` to print."""
        from rich.table import Table

        table = Table("rollouts", str(self.count), box=None)
        mean, deviation = self.reward_mean, self.reward_deviation
        reward = "none is scored" if mean is None else f"{mean:.3f} ± {deviation:.3f} of {self.scored}"
        table.add_row("reward", reward)
        for cause, count in self.causes.items():
            table.add_row(cause, str(count))
        table.add_row("attempts lost", str(self.attempts_lost))
        table.add_row("turns", f"{self.turns_mean:.1f}")
        table.add_row("tokens read, said", f"{self.tokens_read:,}, {self.tokens_said:,}")
        table.add_row("step p50, p99", _times(self.step_p50_s, self.step_p99_s))
        table.add_row("policy p50, p99", _times(self.policy_p50_s, self.policy_p99_s))
        if self.batch_mean is not None:
            table.add_row("prompts a call", f"{self.batch_mean:.1f} on average, {self.batch_largest} at most")
        return table


def _times(*seconds: float) -> str:
    return ", ".join(f"{second * 1000:.1f} ms" for second in seconds)


def _percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0
