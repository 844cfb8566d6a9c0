"""Medians, percentiles, ratios: what the benchmark makes of its figures."""

import pytest
from bench.stats import Summary, paired_ratio, percentile
from hypothesis import given
from hypothesis import strategies as st

some_floats = st.lists(st.floats(0.001, 1e9), min_size=1)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert percentile(values, 0.5) == 3.0
    assert percentile(values, 0.99) == 5.0
    assert percentile(values, 0.0) == 1.0
    assert percentile([7.0], 0.5) == 7.0


@given(some_floats, st.floats(0, 1))
def test_as_many_values_as_asked_do_not_exceed_a_percentile(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_summary_tells_the_median_and_the_spread() -> None:
    summary = Summary.of([100.0, 90.0, 110.0])
    assert (summary.median, summary.low, summary.high, summary.rounds) == (100.0, 90.0, 110.0, 3)
    assert summary.spread == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no rounds"):
        Summary.of([])


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that was twice as slow in the second round was so for both."""
    assert paired_ratio([80.0, 40.0], [10.0, 5.0]) == Summary(8.0, 8.0, 8.0, 2)
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_ratio([1.0], [1.0, 2.0])
