"""The tree of errors, its codes, and the way over the wire and back."""

import pickle
from pathlib import Path

import pytest

from envtorch import errors
from envtorch.errors import (
    BY_CODE,
    CapacityReached,
    EnvironmentFailed,
    EnvTorchError,
    InvalidAction,
    from_wire,
)
from envtorch.protocol import extended
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.protocol.wire import Answer, error_reply


def _all_classes(cls: type[EnvTorchError]) -> set[type[EnvTorchError]]:
    return {cls}.union(
        *(_all_classes(child) for child in cls.__subclasses__() if child.__module__ == cls.__module__)
    )


def test_every_error_is_exported_and_drawn_in_the_tree() -> None:
    for cls in _all_classes(EnvTorchError):
        assert cls.__name__ in errors.__all__
        assert cls.__name__ in (errors.__doc__ or ""), f"{cls.__name__} is missing from the tree"


def test_codes_are_unique_and_openenvs_are_among_them() -> None:
    with_code = [cls for cls in _all_classes(EnvTorchError) if cls.code is not None]
    assert len({cls.code for cls in with_code}) == len(with_code)
    assert set(BY_CODE) >= {
        "INVALID_JSON",
        "UNKNOWN_TYPE",
        "VALIDATION_ERROR",
        "EXECUTION_ERROR",
        "CAPACITY_REACHED",
        "FACTORY_ERROR",
        "SESSION_ERROR",
    }


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_each_error_arrives_as_the_class_that_was_sent(code: str) -> None:
    sent = BY_CODE[code]("what happened")
    received = Answer.read(error_reply(sent).frame()).error()
    assert type(received) is BY_CODE[code]
    assert received.message == "what happened"


def test_details_arrive_too() -> None:
    received = Answer.read(error_reply(CapacityReached.of(2, 2)).frame()).error()
    assert received.details == {"active_sessions": 2, "max_sessions": 2}


def test_a_code_from_the_future_is_still_one_of_ours() -> None:
    error = from_wire("BRAND_NEW", "well")
    assert type(error) is EnvTorchError
    assert str(error) == "well"


def test_an_invalid_action_says_which_field() -> None:
    error = InvalidAction("Invalid message", errors=[{"loc": ["message"], "msg": "Field required"}])
    assert str(error) == "Invalid message (message: Field required)"
    assert isinstance(error, ValueError)


def test_errors_survive_pickling_with_their_details() -> None:
    error = pickle.loads(pickle.dumps(CapacityReached.of(3, 4)))
    assert isinstance(error, CapacityReached)
    assert error.details == {"active_sessions": 3, "max_sessions": 4}


def test_the_documented_table_is_the_table() -> None:
    text = (Path(__file__).parents[1] / "docs/errors.md").read_text()
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
    documented = {code.strip(" `"): (cls.strip(" `"), int(status)) for code, cls, status in rows}
    assert documented == {code: (cls.__name__, cls.http_status) for code, cls in BY_CODE.items()}


@pytest.mark.parametrize("code", sorted(BY_CODE))
@pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)
def test_each_error_arrives_with_its_details_on_the_extended_wire(code: str, format: Format) -> None:
    sent = BY_CODE[code]("what happened", usable=True, error_id="abc")
    reply = extended.error_reply(sent, format)
    frame = extended.write_frame([extended.Message.of(reply, id=3, ch=1)], format)
    (read,) = extended.read_frame(frame, format)
    received = Answer(read.type, format.read(bytes(read.data))).error()
    assert (type(received), received.message, read.id, read.ch) == (BY_CODE[code], "what happened", 3, 1)
    assert received.details == {"usable": True, "error_id": "abc"}


def test_texts_in_an_error_have_a_bound() -> None:
    error = EnvironmentFailed("a" * 100_000 + "z", reason="b" * 100_000, count=3)
    assert len(error.message) < 17_000
    assert error.message.startswith("aaa")
    assert error.message.endswith("z")
    assert "83617 characters left out" in error.message
    assert len(error.details["reason"]) < 17_000
    assert error.details["count"] == 3
    assert str(error) == error.message
