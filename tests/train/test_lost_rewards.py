"""What stands in a group in place of rewards that there are none of."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.train.lost_rewards import filled_rewards

rewards = st.floats(-10, 10).map(lambda reward: round(reward, 3))


@given(
    scored=st.lists(rewards, min_size=2, max_size=12),
    lost=st.integers(2, 12),
    order=st.randoms(use_true_random=False),
)
def test_lost_members_change_neither_mean_nor_deviation_of_their_group(
    scored: list[float], lost: int, order: random.Random
) -> None:
    group: list[float | None] = [*scored, *(None,) * lost]
    order.shuffle(group)
    filled = filled_rewards(group)
    assert [new for new, old in zip(filled, group, strict=True) if old is not None] == [
        reward for reward in group if reward is not None
    ]
    assert statistics.fmean(filled) == pytest.approx(statistics.fmean(scored), abs=1e-9)
    assert statistics.stdev(filled) == pytest.approx(statistics.stdev(scored), abs=1e-9)


def test_advantages_are_those_of_a_group_without_its_lost_members() -> None:
    filled = filled_rewards([0.0, None, None, 1.0, None, None, None, None])
    assert (filled[0], filled[3]) == (0.0, 1.0)
    assert statistics.stdev(filled) == pytest.approx(statistics.stdev([0.0, 1.0]))


def test_one_lost_member_has_the_mean_of_the_others() -> None:
    assert filled_rewards([0.0, None, 1.0]) == [0.0, 0.5, 1.0]
    assert filled_rewards([None, 1.0, None]) == [1.0, 1.0, 1.0]
    assert filled_rewards([None, None]) == [0.0, 0.0]
    assert filled_rewards([]) == []
