"""Spaces of the classes that travel."""

import dataclasses
import enum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field

from envtorch import Action, Observation
from envtorch.errors import ConfigurationError, InvalidAction

gymnasium = pytest.importorskip("gymnasium", reason="needs the gymnasium package")

from gymnasium import spaces  # noqa: E402
from gymnasium.vector.utils import batch_space, iterate  # noqa: E402

from envtorch.train.spaces import ValueSpace  # noqa: E402


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    speed: Annotated[float, Field(ge=0, le=2)]
    gear: Literal["low", "high"]


Floats3 = Annotated[list[float], Field(min_length=3, max_length=3)]
Dice = Annotated[list[Annotated[int, Field(ge=1, le=6)]], Field(min_length=2, max_length=2)]
Grid = Annotated[list[Floats3], Field(min_length=2, max_length=2)]
Switches = Annotated[list[bool], Field(min_length=4, max_length=4)]


class Everything(Action):
    level: Annotated[int, Field(ge=-2, lt=3)]
    force: Annotated[float, Field(gt=-1, le=1)]
    push: bool
    colour: Colour
    letter: Literal["a", "b", "c"]
    place: tuple[float, float]
    sides: Floats3
    dice: Dice
    grid: Grid
    switches: Switches
    word: Annotated[str, Field(max_length=5)]
    inner: Inner


def test_every_field_has_the_space_of_its_schema() -> None:
    space = ValueSpace(Everything).space
    assert isinstance(space, spaces.Dict)
    assert space["level"] == spaces.Discrete(5, start=-2)
    assert space["force"] == spaces.Box(-1, 1, (), np.float64)
    assert space["push"] == spaces.Discrete(2)
    assert space["colour"] == spaces.Discrete(2)
    assert space["letter"] == spaces.Discrete(3)
    assert space["place"] == spaces.Box(-np.inf, np.inf, (2,), np.float64)
    assert space["sides"] == spaces.Box(-np.inf, np.inf, (3,), np.float64)
    assert space["dice"] == spaces.MultiDiscrete([6, 6], start=[1, 1])
    assert space["grid"] == spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
    assert space["switches"] == spaces.MultiBinary(4)
    assert space["inner"]["speed"] == spaces.Box(0, 2, (), np.float64)
    assert space["inner"]["gear"] == spaces.Discrete(2)


@pytest.mark.parametrize("seed", range(20))
def test_an_element_becomes_a_value_and_the_value_the_same_element(seed: int) -> None:
    whole = ValueSpace(Everything)
    whole.space.seed(seed)
    element = whole.space.sample()
    value = whole.value(element)
    assert isinstance(value, Everything)
    again = whole.element(value)
    assert whole.space.contains(again)
    assert gymnasium.utils.env_checker.data_equivalence(again, _as_arrays(element))


def _as_arrays(element: Any) -> Any:
    """Samples with scalars as the arrays and numbers that `element` gives."""
    if isinstance(element, dict):
        return {name: _as_arrays(one) for name, one in element.items()}
    return element if isinstance(element, str | np.int64) else np.asarray(element)


def test_a_class_with_one_field_has_its_bare_space() -> None:
    class Press(Action):
        button: Annotated[int, Field(ge=0, le=9)]

    one = ValueSpace(Press)
    assert one.space == spaces.Discrete(10)
    assert one.value(np.int64(4)) == Press(button=4)
    batch = batch_space(one.space, 2)
    assert [one.value(e) for e in iterate(batch, np.array([1, 2]))] == [Press(button=1), Press(button=2)]


@pytest.mark.parametrize("wrong", [-1, 2, 77, "left", None, [0, 1]])
def test_what_is_no_element_is_refused_in_one_line(wrong: Any) -> None:
    class Turn(Action):
        to: Literal["left", "right"]

    class Press(Action):
        button: Annotated[int, Field(ge=0, le=1)]

    for kind in (Turn, Press):
        with pytest.raises(InvalidAction, match=rf"is no {kind.__name__}: it is not in Discrete\(2\)$"):
            ValueSpace(kind).value(wrong)


def test_a_dataclass_has_spaces_too() -> None:
    @dataclasses.dataclass
    class Turn:
        angle: float
        done: bool = False

    turn = ValueSpace(Turn)
    assert turn.space == spaces.Box(-np.inf, np.inf, (), np.float64)
    assert turn.value(np.array(0.5)) == Turn(0.5)


class Camera(Observation):
    pixels: Any = None
    caption: str = ""
    where: int = 0


@pytest.mark.parametrize(
    ("field", "said"),
    [("caption", "give it a `max_length`"), ("pixels", "spaces={'pixels': ...}")],
)
def test_a_field_without_a_space_is_refused_with_what_to_do(field: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no space for Camera.{field}") as refused:
        ValueSpace(Camera, only=[field])
    assert said in str(refused.value)


def test_a_field_may_be_given_its_space_and_others_left_out() -> None:
    box = spaces.Box(0, 255, (2, 2), np.uint8)
    camera = ValueSpace(Camera, only=["pixels", "where"], given={"pixels": box})
    seen = camera.element(Camera(pixels=[[1, 2], [3, 4]], where=7))
    assert seen["pixels"].dtype == np.uint8
    assert camera.space.contains(seen)


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Camera has no 'pixel'; it has pixels, caption, where"):
        ValueSpace(Camera, only=["pixel"])
    with pytest.raises(ConfigurationError, match="dict has no schema"):
        ValueSpace(dict)
