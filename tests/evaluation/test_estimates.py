"""pass@k without bias, and intervals that are honest about few tasks."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.evaluation import mean_estimate, pass_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_draws_of_k_in_which_one_passes(
    passes: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(passes)))
    draws = list(combinations(passes, k))
    expected = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k(len(passes), sum(passes), k) == pytest.approx(expected)


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 5, 1), (4, 2, 5), (0, 0, 1), (4, -1, 1), (4, 2, 0)])
def test_what_cannot_be_estimated_is_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(samples, passed, k)


rates = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(rates, st.integers(1, 16))
def test_an_interval_holds_its_mean_and_stays_between_0_and_1(values: list[float], samples: int) -> None:
    estimate = mean_estimate(values, samples * len(values))
    assert estimate is not None
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


@given(st.integers(2, 50), st.integers(1, 16))
def test_all_that_passed_is_no_certainty(tasks: int, samples: int) -> None:
    estimate = mean_estimate([1.0] * tasks, tasks * samples)
    assert estimate is not None
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low < 1.0


def test_more_tasks_are_surer_and_alike_samples_are_not() -> None:
    few, many = (mean_estimate([0.0, 1.0] * n, 16 * n) for n in (5, 50))
    assert few is not None
    assert many is not None
    assert many.high - many.low < few.high - few.low
    # Tasks that always or never pass: eight samples of each say no more than one.
    once, eight = mean_estimate([0.0, 1.0] * 5, 10), mean_estimate([0.0, 1.0] * 5, 80)
    assert once is not None
    assert eight is not None
    assert eight.high - eight.low == pytest.approx(once.high - once.low, rel=0.06)
    assert mean_estimate([], 0) is None
