"""Forms, from a schema to fields and from what was filled in to an action."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import InvalidAction
from envtorch.web.schema import MASK, Kind, assemble, fields_of, leaves, masked
from tests.web.environments import Everything, Move

FIELDS = fields_of(Everything.model_json_schema())


def kinds() -> dict[str, Kind]:
    return {field.name: field.kind for field in FIELDS}


def test_each_kind_of_field_is_recognised() -> None:
    assert kinds() == {
        "title": Kind.TEXT,
        "message": Kind.LONG_TEXT,
        "size": Kind.CHOICE,
        "count": Kind.INTEGER,
        "ratio": Kind.NUMBER,
        "urgent": Kind.BOOLEAN,
        "perhaps": Kind.CHOICE,
        "home": Kind.OBJECT,
        "tags": Kind.CHOICES,
        "extra": Kind.JSON,
        "api_key": Kind.SECRET,
        "pin": Kind.SECRET,
        "kind": Kind.FIXED,
    }


def test_what_must_be_filled_in_comes_first() -> None:
    required = [field.required for field in FIELDS]
    assert required == sorted(required, reverse=True)
    assert [field.name for field in FIELDS if field.required] == ["title", "message", "size", "count", "home"]


def test_objects_are_entered_and_bounds_kept() -> None:
    (home,) = (field for field in FIELDS if field.name == "home")
    assert [child.path for child in home.children] == [("home", "street"), ("home", "number")]
    by = fields_of(Move.model_json_schema())[1]
    assert (by.minimum, by.maximum, by.default, by.help) == (1, 3, 1, "How far")


def test_a_filled_form_is_an_action() -> None:
    values = {
        ("title",): "A parcel",
        ("message",): "Please ring",
        ("size",): "small",
        ("count",): 2.0,
        ("ratio",): 0.5,
        ("urgent",): True,
        ("home", "street"): "Elm Street",
        ("home", "number"): 7,
        ("tags",): ["red"],
        ("extra",): '{"fragile": true}',
        ("api_key",): "",
    }
    made = assemble(FIELDS, values)
    assert made == {
        "title": "A parcel",
        "message": "Please ring",
        "size": "small",
        "count": 2,
        "urgent": True,
        "home": {"street": "Elm Street", "number": 7},
        "tags": ["red"],
        "extra": {"fragile": True},
        "kind": "order",
    }
    Everything.model_validate(made)


def test_what_is_not_json_is_refused_where_it_stands() -> None:
    with pytest.raises(InvalidAction) as refused:
        assemble(FIELDS, {("extra",): "{fragile"})
    assert refused.value.errors[0]["loc"] == ("extra",)
    assert "not JSON" in str(refused.value)


def test_an_empty_form_leaves_the_verdict_to_the_environment() -> None:
    assert assemble(FIELDS, {}) == {"title": "", "message": "", "home": {"street": ""}, "kind": "order"}


def test_secrets_are_shown_as_dots_wherever_they_are() -> None:
    sent = {"api_key": "k", "hf_token": "t", "inner": [{"password": "p", "name": "n"}], "token": ""}
    shown = {"api_key": MASK, "hf_token": MASK, "inner": [{"password": MASK, "name": "n"}], "token": ""}
    assert masked(sent) == shown


def test_a_reference_to_itself_does_not_go_round_for_ever() -> None:
    loop: dict[str, Any] = {
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "required": ["node"],
        "$defs": {
            "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
        },
    }
    assert [field.path for field in leaves(fields_of(loop))] == [("node", "next", "next")]


scalars = st.none() | st.booleans() | st.integers() | st.text()


@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.just("description"), scalars), max_size=5))
def test_any_object_has_a_form(properties: dict[str, Any]) -> None:
    fields = fields_of({"properties": properties}, skip=frozenset())
    assert {field.name for field in fields} == set(properties)
    assert assemble(fields, {}) == {}
