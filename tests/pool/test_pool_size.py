"""How many replicas there should be: by hand, by property, and in virtual time."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ConfigurationError
from envtorch.pool.pool_size import PoolLoad, PoolSize, SizeLimits, next_size

LIMITS = SizeLimits(2, 16, grow_after_s=1.0, shrink_after_s=60.0)


def load(
    *, starting: int = 0, busy: int = 0, waiting: int = 0, wait_s: float = 0.0, each: int = 8
) -> PoolLoad:
    return PoolLoad(starting, each, busy, waiting, wait_s)


def test_it_grows_by_what_is_missing_once_somebody_has_waited_long_enough() -> None:
    size = PoolSize(4)
    assert next_size(size, load(busy=32, waiting=20, wait_s=0.9), LIMITS, 0.0).replicas == 4
    assert next_size(size, load(busy=32, waiting=20, wait_s=1.0), LIMITS, 0.0).replicas == 7
    assert next_size(size, load(busy=32, waiting=500, wait_s=1.0), LIMITS, 0.0).replicas == 8, "twice at most"
    assert next_size(PoolSize(12), load(waiting=500, wait_s=1.0), LIMITS, 0.0).replicas == 16


def test_replicas_that_are_being_started_are_counted() -> None:
    size = PoolSize(7)
    assert next_size(size, load(starting=3, busy=32, waiting=20, wait_s=9.0), LIMITS, 0.0).replicas == 7
    assert next_size(size, load(starting=2, busy=32, waiting=20, wait_s=9.0), LIMITS, 0.0).replicas == 8


def test_it_shrinks_to_what_the_busiest_moment_of_a_calm_time_needed() -> None:
    size = next_size(PoolSize(8), load(busy=10), LIMITS, 100.0)
    size = next_size(size, load(busy=30), LIMITS, 130.0)
    size = next_size(size, load(busy=5), LIMITS, 159.9)
    assert size == PoolSize(8, calm_since=100.0, most_busy=30)
    assert next_size(size, load(busy=5), LIMITS, 160.0) == PoolSize(5), "30 sessions fill five, and not four"


def test_a_busy_moment_begins_the_calm_time_anew() -> None:
    size = next_size(PoolSize(4), load(busy=3), LIMITS, 0.0)
    assert next_size(size, load(busy=30), LIMITS, 59.0) == PoolSize(4)
    assert next_size(size, load(busy=3, waiting=1), LIMITS, 59.0) == PoolSize(4)
    assert next_size(size, load(busy=3, starting=1), LIMITS, 59.0) == PoolSize(4)


@pytest.mark.parametrize("wrong", [(0, 4), (5, 4), (-1, -1)])
def test_limits_that_cannot_be_meant_are_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError, match="the least and the most"):
        SizeLimits(*wrong)
    with pytest.raises(ConfigurationError, match="0 or more"):
        SizeLimits(1, 2, grow_after_s=-1.0)


LIMITED = st.tuples(st.integers(1, 50), st.integers(0, 50)).map(lambda n: SizeLimits(n[0], n[0] + n[1]))
LOADS = st.builds(
    PoolLoad,
    starting=st.integers(0, 20),
    sessions_per_replica=st.integers(1, 64),
    busy=st.integers(0, 5000),
    waiting=st.integers(0, 5000),
    longest_wait_s=st.floats(0.0, 1e6),
)


@given(LIMITED, st.lists(st.tuples(LOADS, st.floats(0.0, 100.0)), max_size=30))
def test_it_stays_within_its_limits_and_has_a_reason_for_every_change(
    limits: SizeLimits, seen: list[tuple[PoolLoad, float]]
) -> None:
    size, now = PoolSize(limits.least), 0.0
    for what, later in seen:
        now += later
        following = next_size(size, what, limits, now)
        assert limits.least <= following.replicas <= limits.most
        if following.replicas > size.replicas:
            assert what.waiting > what.starting * what.sessions_per_replica
            assert what.longest_wait_s >= limits.grow_after_s
        if following.replicas < size.replicas:
            assert not what.waiting
            assert not what.starting
            assert size.calm_since is not None or limits.shrink_after_s == 0
            assert now - (size.calm_since or now) >= limits.shrink_after_s
            assert what.busy <= following.replicas * what.sessions_per_replica, "there is room for all"
        size = following


@given(LIMITED, st.integers(1, 16), st.integers(0, 3000), st.integers(1, 50))
def test_under_a_steady_load_it_comes_to_rest(limits: SizeLimits, each: int, demand: int, first: int) -> None:
    """With replicas that start at once. It rests where nobody waits who could be served, and turns at most
    once: it never grows again after it has shrunk."""
    size, sizes = PoolSize(min(max(first, limits.least), limits.most)), []
    for second in range(1200):
        busy = min(demand, size.replicas * each)
        waiting = demand - busy
        size = next_size(size, PoolLoad(0, each, busy, waiting, float(waiting > 0)), limits, float(second))
        sizes.append(size.replicas)
    changes = [after - before for before, after in itertools.pairwise(sizes) if after != before]
    assert len(set(sizes[-100:])) == 1
    assert sizes[-1] * each >= min(demand, limits.most * each)
    assert not any(change > 0 for n, change in enumerate(changes) if any(c < 0 for c in changes[:n]))
