"""The simulated pool: every episode ends, whatever nodes are lost."""

from typing import Any

import pytest
from bench.simulate import Plan, Simulation, main, needed_steps
from bench.simulate_elastic import ElasticPlan, ElasticSimulation

from envtorch.pool.pool_size import SizeLimits

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


def test_a_pool_that_follows_its_load_cuts_nothing_off_and_needs_fewer_replicas() -> None:
    fixed, elastic = (
        ElasticSimulation(
            ElasticPlan(SizeLimits(least, 20), sessions_per_replica=8, hours=4.0, wave_s=7200.0)
        ).run()
        for least in (20, 2)
    )
    assert elastic.killed == fixed.killed == 0
    assert elastic.finished > 0.9 * fixed.finished
    assert elastic.replica_s < 0.8 * fixed.replica_s
    assert elastic.wait(0.5) == 0.0
    turns = [a < b > c or a > b < c for a, b, c in zip(*(elastic.sizes[n:] for n in range(3)), strict=False)]
    assert not any(turns), "no change of size is taken back a second later"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--episodes", "0"], "--episodes: give more than"),
        (["--replicas", "1"], "--replicas: give 160 or more"),
        (["--replicas", "0"], "--replicas: give 160 or more"),
        (["--replicas", "160", "--episodes", "50"], "--episodes: give more than"),
    ],
    ids=" ".join,
)
def test_sizes_that_cannot_be_simulated_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err
