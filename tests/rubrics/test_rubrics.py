"""Rubrics: scores, parts, hooks, and one rule for both colours."""

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import pytest

from envtorch.rubrics import (
    ExponentialDiscountingTrajectoryRubric,
    Gate,
    Rubric,
    RubricDict,
    RubricList,
    Sequential,
    WeightedSum,
)


class Fixed(Rubric):
    def __init__(self, score: float) -> None:
        super().__init__()
        self.score = score
        self.calls = 0

    def forward(self, action: Any, observation: Any) -> float:
        self.calls += 1
        return self.score


class Awaited(Fixed):
    async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
        self.calls += 1
        return self.score


class Forgetful(Rubric):
    """Does not call `super().__init__()`, as authors do."""

    def __init__(self) -> None:
        self.inner = Fixed(0.5)

    def forward(self, action: Any, observation: Any) -> Any:
        return self.inner(action, observation)


def test_a_plain_rubric_gives_a_number_that_may_also_be_awaited() -> None:
    score = Fixed(0.5)("a", "o")

    async def awaited() -> Any:
        return await Fixed(0.25)("a", "o")

    assert score == 0.5
    assert isinstance(score, float)
    assert type(asyncio.run(awaited())) is float


def test_a_gate_makes_no_zero_of_what_is_no_number() -> None:
    assert math.isnan(Gate(Fixed(math.nan), threshold=0.5)(None, None))
    assert [Gate(Fixed(score), threshold=0.5)(None, None) for score in (0.4, 0.5)] == [0.0, 0.5]


def test_parts_have_paths() -> None:
    rubric = Sequential(Gate(Fixed(1.0)), WeightedSum([Fixed(1.0), Fixed(0.0)], [0.25, 0.75]))
    paths = dict(rubric.named_rubrics())

    assert list(paths) == [
        "rubric_0",
        "rubric_0.rubric",
        "rubric_1",
        "rubric_1.rubric_0",
        "rubric_1.rubric_1",
    ]
    assert rubric.get_rubric("rubric_1.rubric_1") is paths["rubric_1.rubric_1"]
    assert rubric("a", "o") == 0.25
    assert paths["rubric_1"].last_score == 0.25
    with pytest.raises(KeyError, match="no rubric at 'rubric_1"):
        rubric.get_rubric("rubric_1.nope")


def test_a_part_replaced_by_something_else_is_no_part() -> None:
    rubric = Forgetful()
    assert dict(rubric.named_children()) == {"inner": rubric.inner}
    assert rubric("a", "o") == 0.5
    rubric.inner = None  # type: ignore[assignment]
    assert list(rubric.children()) == []


@pytest.mark.parametrize("kind", [Fixed, Awaited])
def test_a_zero_ends_a_sequence(kind: type[Fixed]) -> None:
    last = kind(1.0)
    score = Sequential(kind(1.0), kind(0.0), last)("a", "o")

    async def settle() -> Any:
        return await score

    assert asyncio.run(settle()) == 0.0
    assert last.calls == 0


def test_async_parts_run_at_the_same_time() -> None:
    """Each part waits for the other: one after the other they would wait for ever."""
    met = asyncio.Event()

    class First(Rubric):
        async def forward(self, action: Any, observation: Any) -> float:
            await met.wait()
            return 1.0

    class Second(Rubric):
        async def forward(self, action: Any, observation: Any) -> float:
            met.set()
            return 0.0

    async def score() -> Any:
        async with asyncio.timeout(10):
            return await WeightedSum([First(), Second()], [0.5, 0.5])("a", "o")

    assert asyncio.run(score()) == 0.5


def test_hooks_see_what_happens_in_order() -> None:
    seen: list[Any] = []
    rubric = Fixed(0.5)
    rubric.register_forward_pre_hook(lambda r, a, o: seen.append(("before", r.calls, a, o)))  # type: ignore[attr-defined]
    rubric.register_forward_hook(lambda r, a, o, score: seen.append(("after", score)))

    async def late(r: Rubric, a: Any, o: Any, score: Any) -> None:
        seen.append("awaited")

    rubric.register_forward_hook(late)
    asyncio.run(_await(rubric("a", "o")))
    assert seen == [("before", 0, "a", "o"), ("after", 0.5), "awaited"]


async def _await(value: Any) -> Any:
    return await value


def test_an_exception_comes_out_where_it_happened() -> None:
    class Broken(Rubric):
        async def forward(self, action: Any, observation: Any) -> float:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(_await(Sequential(Fixed(1.0), Broken())("a", "o")))


def test_weights_are_checked() -> None:
    with pytest.raises(ValueError, match="must sum to 1"):
        WeightedSum([Fixed(1)], [0.5])
    with pytest.raises(ValueError, match="must match"):
        WeightedSum([Fixed(1)], [0.5, 0.5])


def test_collections_hold_and_do_not_score() -> None:
    row, named = RubricList([Fixed(0.1)]), RubricDict({"chess": Fixed(0.2)})
    row.append(Fixed(0.3))
    named["go"] = Fixed(0.4)
    assert [r.score for r in row] == [0.1, 0.3]  # type: ignore[attr-defined]
    assert sorted(named) == ["chess", "go"]
    assert "chess" in dict(named.named_rubrics())
    with pytest.raises(NotImplementedError):
        row("a", "o")
    with pytest.raises(NotImplementedError):
        named("a", "o")


@dataclass
class Seen:
    done: bool = False


class Won(ExponentialDiscountingTrajectoryRubric):
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
        return 1.0


def test_an_episode_is_scored_at_its_end_and_shared_out() -> None:
    rubric = Won(gamma=0.5, intermediate_reward=0.1)
    scores = [rubric("a", Seen()), rubric("a", Seen()), rubric("a", Seen(done=True))]
    assert scores == [0.1, 0.1, 1.0]
    assert rubric.compute_step_rewards() == [0.25, 0.5, 1.0]
    rubric.reset()
    assert rubric.trajectory == []


def test_a_container_resets_and_describes_its_parts() -> None:
    inner = Won(gamma=0.5)
    outer = Sequential(Fixed(1.0), Gate(inner))
    outer("a", Seen())
    outer.reset()
    assert inner.trajectory == []
    state = outer.state_dict()
    assert state == {"rubric_1": {"rubric": {"intermediate_reward": 0.0, "gamma": 0.5}}}
    state["rubric_1"]["rubric"]["gamma"] = 0.9
    outer.load_state_dict(state)
    assert inner.gamma == 0.9
