"""The values that travel, as pydantic models and as dataclasses."""

from dataclasses import dataclass, field
from typing import Any, assert_type

import numpy as np
import pytest
from pydantic import ConfigDict, Field, ValidationError, field_validator

from envtorch import Action, Observation, ServerCapacityStatus, State, StepResult


@dataclass
class Move(Action):
    x: int
    y: int = 0
    path: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Jump(Move):
    height: float


positional: Any = Move
"""Type checkers see pydantic's keyword-only constructor; positions are for code that came before."""


class TestDataclassSubclasses:
    def test_required_fields_defaults_and_positions(self) -> None:
        assert Move(x=1).model_dump() == {"metadata": {}, "x": 1, "y": 0, "path": []}
        assert positional(1, 2) == Move(x=1, y=2)
        assert Jump(x=1, height=2.5).height == 2.5

    def test_values_are_validated(self) -> None:
        with pytest.raises(ValidationError, match="x"):
            Move(x="north")  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="Field required"):
            Move()  # type: ignore[call-arg]

    def test_too_many_positions_are_refused(self) -> None:
        with pytest.raises(TypeError, match="3 positional"):
            positional(1, 2, [], 4)

    def test_json_goes_both_ways(self) -> None:
        assert Move.model_validate_json('{"x": 3}') == Move(x=3)
        assert Move.model_json_schema()["required"] == ["x"]

    def test_equality_sees_inherited_fields(self) -> None:
        assert Move(x=1, metadata={"a": 1}) != Move(x=1)

    def test_post_init_is_honoured(self) -> None:
        @dataclass
        class Doubled(State):
            n: int = 1

            def __post_init__(self) -> None:
                self.n *= 2

        assert Doubled(n=4).n == 8


def test_unknown_fields_are_refused_except_in_a_state() -> None:
    with pytest.raises(ValidationError):
        Action(whatever=1)  # type: ignore[call-arg]
    assert State(level=3).model_dump()["level"] == 3  # type: ignore[call-arg]


@pytest.mark.parametrize("reward", [True, 1, 0.5, None])
def test_a_reward_keeps_its_kind(reward: Any) -> None:
    observed = Observation(reward=reward).reward
    assert observed == reward
    assert type(observed) is type(reward)


def test_numpy_rewards_are_taken_as_numbers() -> None:
    rewards: list[Any] = [np.float32(0.5), np.int64(3)]
    assert [Observation(reward=reward).reward for reward in rewards] == [0.5, 3]


def test_terminated_and_truncated_stay_outside_the_observation() -> None:
    observation = Observation(truncated=True)
    assert "truncated" not in observation.model_dump()
    assert "truncated" not in Observation.model_json_schema()["properties"]


class TestStepResult:
    def test_done_alone_means_terminated(self) -> None:
        result = StepResult("seen", done=True)
        assert (result.terminated, result.truncated) == (True, False)

    def test_truncated_means_done_but_not_terminated(self) -> None:
        result = StepResult("seen", truncated=True)
        assert (result.done, result.terminated) == (True, False)

    def test_it_is_generic(self) -> None:
        assert_type(StepResult("seen").observation, str)


def test_capacity_status_counts_slots() -> None:
    status = ServerCapacityStatus.from_counts(3, 4)
    assert (status.available_slots, status.is_at_capacity) == (1, False)
    with pytest.raises(ValueError, match="5 active sessions do not fit in 4"):
        ServerCapacityStatus.from_counts(5, 4)


class TestCountingSteps:
    """Assigning a count has a short way; what may be assigned is what could be without it."""

    class Strict(State):
        step_count: int = Field(default=0, le=3)

    class Checked(State):
        @field_validator("step_count")
        @classmethod
        def few(cls, count: int) -> int:
            if count > 3:
                raise ValueError("too many")
            return count

    class Settled(State):
        model_config = ConfigDict(frozen=True)

    def test_a_count_is_kept_and_known_to_be_set(self) -> None:
        state = State()
        state.step_count += 1
        assert state.model_dump(exclude_unset=True) == {"step_count": 1}

    @pytest.mark.parametrize("count", [-1, "many", 2.5, None])
    def test_what_is_no_count_is_refused(self, count: Any) -> None:
        state = State()
        with pytest.raises(ValidationError):
            state.step_count = count
        assert state.step_count == 0

    @pytest.mark.parametrize("count", [True, "3", 2.0])
    def test_what_can_be_read_as_a_count_becomes_one(self, count: Any) -> None:
        state = State()
        state.step_count = count
        assert type(state.step_count) is int

    @pytest.mark.parametrize("kind", [Strict, Checked, Settled])
    def test_a_subclass_with_rules_of_its_own_keeps_them(self, kind: type[State]) -> None:
        with pytest.raises(ValidationError):
            kind().step_count = 4
