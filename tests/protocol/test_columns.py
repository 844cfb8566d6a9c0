"""Columns of a class: checked as a whole, with what is wrong named."""

from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, field_validator

from envtorch import Action, Actions, Observation
from envtorch.protocol.columns import Table, rows_of, table_of


class Move(Action):
    by: int
    speed: float = 1.0
    name: str | None = None
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    path: list[int] = Field(default_factory=list)
    picture: Any = None


def table(kind: type = Move) -> Table:
    found = table_of(kind)
    assert found is not None
    return found


def test_what_is_left_out_has_its_default() -> None:
    columns = table().checked({"by": [1, 2]}, 2)
    assert columns["speed"] == [1.0, 1.0]
    assert columns["path"] == [[], []]
    assert columns["path"][0] is not columns["path"][1], "one list for each, not one for all"


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({}, "no column 'by'"),
        ({"by": [1]}, "column 'by' has 1 values, and there are 2"),
        ({"by": np.zeros((3, 2), int)}, "column 'by' has 3 values"),
        ({"by": 5}, "column 'by' is one int"),
        ({"by": np.int64(5)}, "column 'by' is one int64"),
        ({"by": [1, 2], "name": "ab"}, "column 'name' is one str"),
        ({"by": [1, 2], "height": [1, 2]}, "no field 'height'; it has metadata, by"),
        ({"by": [1, "far"]}, "column 'by', value 1: .*valid integer"),
        ({"by": [1, 2], "share": [0.5, 2.0]}, "column 'share', value 1: .*less than or equal to 1"),
        ({"by": [1, 2], "share": np.array([0.5, 2.0])}, "column 'share', value 1"),
        ({"by": np.array([0.5, 1.0])}, "column 'by', value 0"),
    ],
)
def test_what_does_not_fit_is_named(columns: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        table().checked(columns, 2)


def test_arrays_stay_arrays_where_their_dtype_says_enough() -> None:
    numbers, pictures = np.arange(2), np.zeros((2, 3, 3), "u1")
    columns = table().checked(
        {"by": numbers, "speed": numbers, "path": pictures[:, 0], "picture": pictures}, 2
    )
    assert columns["by"] is numbers
    assert columns["speed"] is numbers
    assert columns["picture"] is pictures
    assert columns["path"] == [[0, 0, 0], [0, 0, 0]], "a list of numbers is no array"
    assert rows_of(columns)[1]["by"] == 1
    assert type(rows_of(columns)[1]["by"]) is int


class Named(Action):
    by: int = Field(alias="distance")


class Judged(Action):
    by: int

    @field_validator("by")
    @classmethod
    def not_zero(cls, by: int) -> int:
        assert by
        return by


class Prepared(Action):
    by: int

    def model_post_init(self, context: Any) -> None:
        self.metadata["prepared"] = True


class Stubborn(Action):
    by: int

    @classmethod
    def model_validate(cls, *args: Any, **kwargs: Any) -> Any:
        return cls(by=0)


@pytest.mark.parametrize("kind", [Named, Judged, Prepared, Stubborn, dict, int])
def test_a_class_with_its_own_way_has_no_columns(kind: type) -> None:
    assert table_of(kind) is None


@pytest.mark.parametrize("kind", [Action, Observation, Move, BaseModel])
def test_a_plain_class_has_them(kind: type) -> None:
    assert table_of(kind) is not None


values = st.one_of(
    st.integers(-5, 5), st.floats(-2, 2), st.booleans(), st.none(), st.text(max_size=2), st.just("7")
)


@given(st.lists(st.fixed_dictionaries({"by": values, "speed": values, "name": values, "share": values})))
def test_columns_fit_exactly_when_each_value_does(rows: list[dict[str, Any]]) -> None:
    columns = {name: [row[name] for row in rows] for name in ("by", "speed", "name", "share")}
    try:
        each = TypeAdapter(list[Move]).validate_python(rows)
    except ValidationError:
        with pytest.raises(ValueError, match="column"):
            table().checked(columns, len(rows))
        return
    checked = table().checked(columns, len(rows))
    assert TypeAdapter(list[Move]).validate_python(rows_of(checked)) == each
    assert table().columns(each) == checked


def test_actions_are_made_when_they_are_looked_at() -> None:
    made = []

    def make() -> list[Move]:
        made.append(1)
        return [Move(by=1), Move(by=2)]

    actions = Actions(2, make, {"by": [1, 2]})
    assert len(actions) == 2
    assert actions.column("by") == [1, 2]
    assert not made
    with pytest.raises(AttributeError, match="no field 'bye'; they have by"):
        actions.column("bye")
    assert [action.by for action in actions] == [1, 2]
    assert actions[1].by == 2
    assert actions[:1][0].by == 1
    assert made == [1]
    assert Actions.of([Move(by=3)]).column("by") == [3]
