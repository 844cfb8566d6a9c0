"""Lines, secrets and differences: the parts of a recording that open no file."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import ConfigurationError
from envtorch.recording.compare import Comparison
from envtorch.recording.format import Fault, Header, Reset, Step, read_line, write_line
from envtorch.recording.redaction import REDACTED, Redactor

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def step(**changes: Any) -> Step:
    given: dict[str, Any] = {"session": 1, "episode": 2, "step": 3, "at": 1.5, "seconds": 0.25, "action": {}}
    return Step(**(given | changes))


@given(action=plain, observation=plain, reward=st.none() | st.booleans() | st.integers(-9, 9))
def test_a_line_comes_back_as_it_was(action: Any, observation: Any, reward: Any) -> None:
    line = step(action=action, observation=observation, reward=reward, done=True)
    text = write_line(line)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert read_line(text) == line


def test_half_a_surrogate_pair_does_not_stop_the_writer() -> None:
    line = read_line(write_line(step(action={"text": "\ud800"}, observation=msgspec.Raw(b'{"a":1}'))))
    assert isinstance(line, Step)
    assert line.observation == {"a": 1}


def test_a_line_from_the_future_is_refused_with_a_sentence() -> None:
    text = write_line(
        Header(format=99, id="x", environment="e", started_at=0.0, versions={"envtorch": "9.0"})
    )
    with pytest.raises(ConfigurationError, match=r"format 99.*9\.0"):
        read_line(text)
    with pytest.raises(ConfigurationError, match="no line of a recording"):
        read_line(b'{"kind":"poem"}\n')


def test_what_came_of_a_call() -> None:
    assert step(observation=1, reward=2).outcome == {"observation": 1, "reward": 2, "done": False}
    failed = Reset(session=1, episode=1, step=0, at=0, seconds=0, error=Fault(code="X", message="y"))
    assert failed.outcome == {"error": {"code": "X", "message": "y"}}


SCHEMA = {
    "properties": {
        "user": {"type": "string"},
        "code": {"type": "string", "format": "password", "writeOnly": True},
        "inner": {"$ref": "#/$defs/Inner"},
        "maybe": {"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}]},
    },
    "$defs": {"Inner": {"properties": {"pin": {"writeOnly": True}, "again": {"$ref": "#/$defs/Inner"}}}},
}


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        ({"user": "ada", "code": "x"}, {"user": "ada", "code": REDACTED}),
        ({"inner": {"pin": 1234, "n": 1}}, {"inner": {"pin": REDACTED, "n": 1}}),
        ({"maybe": "x"}, {"maybe": REDACTED}),
        ([{"openai_api_key": "sk"}], [{"openai_api_key": REDACTED}]),
        ({"password": "p", "mine": "q"}, {"password": REDACTED, "mine": REDACTED}),
    ],
)
def test_secrets_are_taken_out(given: Any, cleaned: Any) -> None:
    assert Redactor(SCHEMA, names=["mine"]).clean(given) == (cleaned, True)


@pytest.mark.parametrize(
    "given", [{"token": 17, "tokens": [1, 2]}, {"key": "a"}, {"code": None}, {"code": ""}, 3]
)
def test_what_is_no_secret_stays(given: Any) -> None:
    assert Redactor(SCHEMA).clean(given) == (given, False)


@given(plain)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert list(Comparison().differences(value, value)) == []


def test_differences_say_where() -> None:
    then = {"observation": {"board": [1, 2, 3], "text": "one\ntwo\nthree"}, "reward": 1.0, "done": False}
    now = {"observation": {"board": [1, 9, 3], "text": "one\nTWO\nthree"}, "reward": 1.0 + 1e-9, "done": 0}
    found = {difference.path: difference.lines() for difference in Comparison().differences(then, now)}
    assert list(found) == ["observation.board.1", "observation.text", "reward", "done"]
    assert found["observation.board.1"] == ["observation.board.1", "  - 2", "  + 9"]
    assert "  -two" in found["observation.text"]
    assert "  +TWO" in found["observation.text"]
    lenient = Comparison(ignore=["observation.*"], tolerance=1e-6)
    assert [difference.path for difference in lenient.differences(then, now)] == ["done"]


def test_a_missing_value_is_a_difference() -> None:
    (found,) = Comparison().differences({"a": 1}, {"a": 1, "b": None})
    assert found.lines() == ["b", "  - (nothing)", "  + null"]
