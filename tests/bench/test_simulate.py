"""The simulated pool: every episode ends, whatever nodes are lost."""

from typing import Any

import pytest
from bench.simulate import Plan, Simulation, needed_steps

SMALL: dict[str, Any] = {
    "replicas": 40,
    "sessions_per_replica": 4,
    "replicas_per_node": 4,
    "episodes": 600,
    "most_steps": 60,
}


@pytest.mark.parametrize("load", [0.5, 1.0])
def test_every_episode_ends_and_the_policy_repeats_nothing_when_it_is_replayed(load: float) -> None:
    plan = Plan(load=load, recovers=True, **SMALL)
    tally = Simulation(plan).run()
    assert tally.finished == plan.episodes
    assert tally.hit > 0
    assert tally.steps == needed_steps(plan)
    assert tally.replayed_steps > 0


def test_episodes_that_begin_again_cost_the_policy_more() -> None:
    plan = Plan(load=1.0, recovers=False, **SMALL)
    tally = Simulation(plan).run()
    assert tally.finished == plan.episodes
    assert tally.steps > needed_steps(plan)
    assert tally.replayed_steps == 0


def test_without_losses_every_session_is_used_and_nobody_is_hit() -> None:
    tally = Simulation(Plan(load=1.0, loss_every_s=1e12, **SMALL)).run()
    assert tally.hit == 0
    assert tally.utilisation == pytest.approx(1.0)
