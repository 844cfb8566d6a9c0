"""What is shown of rollouts while they run and when they are over."""

import asyncio
import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from envtorch.rollout import Rollouts, RolloutSummary, Trajectory, with_progress
from tests.rollout.dials import LETTERS, DialEnv, Player, dials, upwards
from tests.support import Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with dials() as running:
        yield running


def test_a_bar_counts_groups_and_tells_rewards_and_endings(server: Running) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)

    async def run() -> list[Trajectory]:
        async with Rollouts(DialEnv, server.url, Player(upwards), max_turns=1, concurrency=8) as rollouts:
            watched = with_progress(rollouts.groups(range(3), size=2), 3, console=console)
            return [member async for group in watched for member in group]

    assert len(asyncio.run(run())) == 6
    assert "3/3" in shown.getvalue()
    assert "max_turns" in shown.getvalue()


def test_a_summary_has_tokens_latencies_and_batch_sizes(server: Running) -> None:
    async def run() -> RolloutSummary:
        policy = Player(upwards)
        async with Rollouts(DialEnv, server.url, policy, template=LETTERS, max_turns=2) as rollouts:
            played = [member async for group in rollouts.groups(range(3), size=2) for member in group]
            return RolloutSummary.of(played, rollouts.batches)

    summary = asyncio.run(run())
    assert summary.count == 6
    assert summary.tokens_read > summary.tokens_said > 0
    assert 0 < summary.policy_p50_s <= summary.policy_p99_s
    assert summary.batch_largest is not None
    assert summary.batch_mean is not None
    assert 1 <= summary.batch_mean <= summary.batch_largest <= 6
    shown = io.StringIO()
    Console(file=shown, width=100).print(summary.table())
    for row in ("tokens read, said", "policy p50, p99", "prompts a call", "max_turns"):
        assert row in shown.getvalue()
