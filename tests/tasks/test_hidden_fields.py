"""What a task set hides stays hidden: from the routes, from the hash, and from a misspelled name."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NotRequired

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, model_serializer
from typing_extensions import TypedDict

from envtorch.errors import ConfigurationError, InvalidAction
from envtorch.tasks import TaskSet


class Sum(BaseModel):
    question: str
    answer: int


class Graded(BaseModel):
    question: str
    grading: Sum


class Aliased(BaseModel):
    question: str
    right: int = Field(alias="answer")


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    question: str


class Computed(BaseModel):
    question: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def answer(self) -> int:
        return len(self.question)


class SelfMade(BaseModel):
    question: str
    answer: int

    @model_serializer
    def fields(self) -> dict[str, Any]:
        return {"question": self.question, "answer": self.answer}


@dataclass
class Card:
    question: str
    answer: int


class Row(TypedDict):
    question: str
    answer: NotRequired[int]


def served(kind: type[Any], row: Any, hidden: Iterable[str] = ("answer",)) -> dict[str, Any]:
    return TaskSet(kind, [row], hidden=hidden).get_task("test", 0)


def test_a_served_hash_tells_nothing_about_a_hidden_field() -> None:
    hashes = {served(Sum, {"question": "?", "answer": n})["hash"] for n in range(50)}
    assert len(hashes) == 1
    entry = TaskSet(Sum, [{"question": "?", "answer": 3}], hidden=["answer"]).entry("test/0")
    assert {entry.hash} == hashes, "an entry is what `find_task` compares with"


def test_a_changed_public_field_is_noticed_where_others_are_hidden() -> None:
    before = served(Sum, {"question": "1 + 1", "answer": 2})
    after = TaskSet(Sum, [{"question": "1 + 2", "answer": 2}], hidden=["answer"])
    with pytest.raises(InvalidAction, match="has changed since"):
        after.find_task(before)


@pytest.mark.parametrize("kind", [Sum, Card, Row, dict, Loose, SelfMade])
def test_a_hidden_field_of_any_kind_of_task_is_left_out(kind: type[Any]) -> None:
    assert served(kind, {"question": "?", "answer": 4})["task"] == {"question": "?"}


def test_a_computed_field_can_be_hidden() -> None:
    assert served(Computed, {"question": "?"})["task"] == {"question": "?"}


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        (Sum, "anwser", "question, answer"),
        (Card, "anwser", "question, answer"),
        (Row, "anwser", "answer, question"),
        (Graded, "grading.answer", "question, grading"),
        (Aliased, "answer", "question, right"),
    ],
)
def test_a_hidden_name_that_is_not_a_field_is_refused_at_once(
    kind: type[Any], name: str, fields: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TaskSet(kind, [], hidden=[name])
    assert str(refused.value) == (
        f"{name!r} cannot be hidden: it is not a field of {kind.__name__}, which has {fields}"
    )


@pytest.mark.parametrize("kind", [dict, Loose])
def test_an_undeclared_hidden_field_is_looked_for_in_every_row(kind: type[Any]) -> None:
    rows = [{"question": "?", "answer": 4}, {"question": "?", "anwser": 4}]
    tasks = TaskSet(kind, rows, hidden=["answer"])
    assert tasks.get_task("test", 0)["task"] == {"question": "?"}
    for read in (tasks.load, lambda: tasks.get_task("test", 1), lambda: tasks.list_tasks("test")):
        with pytest.raises(ConfigurationError, match="task 1: this task has no field 'answer'"):
            read()


def test_an_optional_field_that_is_declared_may_be_absent() -> None:
    assert served(Row, {"question": "?"})["task"] == {"question": "?"}


def test_a_task_without_fields_and_a_text_of_letters_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no field 'answer'"):
        served(list, [1, 2])
    with pytest.raises(ConfigurationError, match=r"write hidden=\['answer'\]"):
        TaskSet(dict, [], hidden="answer")
