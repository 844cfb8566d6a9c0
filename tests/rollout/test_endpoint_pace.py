"""When requests to an endpoint may begin, by hand and by a clock of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.rollout.endpoint_pace import BURST_S, EndpointPace


def begin_when_it_may(pace: EndpointPace, now: float) -> tuple[float, float]:
    """The time at which the next request begins, and what it takes."""
    while (wait_s := pace.wait_s(now)) > 0:
        now += wait_s + 1e-6
    return now, pace.begin(now)


@given(
    limit=st.floats(60, 1e6),
    expected=st.floats(0, 1e5),
    used=st.lists(st.integers(0, 50_000), max_size=40),
)
def test_a_request_begins_only_when_those_before_it_are_within_the_limit(
    limit: float, expected: float, used: list[int]
) -> None:
    pace, now = EndpointPace(tokens_per_minute=limit, expected=expected), 0.0
    for place, tokens in enumerate(used):
        now, taken = begin_when_it_may(pace, now)
        assert sum(used[:place]) <= limit / 60 * (now + BURST_S) * (1 + 1e-6)
        pace.settle(taken, tokens)


def test_requests_that_are_not_answered_yet_count_as_much_as_answered_ones_did() -> None:
    pace = EndpointPace(tokens_per_minute=600, expected=80)
    pace.settle(pace.begin(0.0), 50)
    assert [begin_when_it_may(pace, 0.0)[0] for _ in range(4)] == pytest.approx([0, 5, 10, 15], abs=0.01)


def test_a_refused_request_has_used_nothing() -> None:
    pace = EndpointPace(tokens_per_minute=600, expected=100)
    taken = pace.begin(0.0)
    assert pace.wait_s(0.0) == pytest.approx(10.0)
    pace.settle(taken, 0)
    assert pace.wait_s(0.0) == 0.0
    assert pace.expected == 100


def test_one_request_above_the_limit_begins_and_is_paid_for_by_the_next() -> None:
    pace = EndpointPace(tokens_per_minute=60, expected=5)
    pace.settle(pace.begin(0.0), 100)
    assert pace.wait_s(0.0) == pytest.approx(100.0), "until the bucket of ten is full"
    assert pace.wait_s(100.0) == 0.0


def test_both_limits_hold_and_a_pause_delays_everybody() -> None:
    pace = EndpointPace(requests_per_s=4, tokens_per_minute=6000, expected=10)
    begun = [begin_when_it_may(pace, 0.0)[0] for _ in range(3)]
    assert begun == pytest.approx([0.0, 0.25, 0.5], abs=0.01)
    pace.pause(until=9.0)
    assert pace.wait_s(1.0) == pytest.approx(8.0)


def test_without_limits_nothing_waits() -> None:
    pace = EndpointPace(expected=1024)
    assert [begin_when_it_may(pace, 0.0)[0] for _ in range(100)] == [0.0] * 100
