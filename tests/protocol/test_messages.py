"""Reading what a client says: by hand, and by the thousand."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError, field_validator

from envtorch.errors import EnvTorchError, InvalidAction, InvalidJSON, UnknownMessage
from envtorch.protocol.messages import (
    MAX_ERROR_BYTES,
    Close,
    Mcp,
    ResetMessage,
    StateMessage,
    StepMessage,
    decode,
    invalid,
)
from envtorch.protocol.wire import error_reply

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), json_values, max_size=4)


class TestWellFormed:
    def test_reset_needs_no_data(self) -> None:
        assert decode('{"type":"reset"}') == ResetMessage()

    @given(objects)
    def test_reset_keeps_its_options(self, options: dict[str, Any]) -> None:
        request = decode(json.dumps({"type": "reset", "data": options}))
        assert isinstance(request, ResetMessage)
        assert request.data == options

    @given(objects)
    def test_step_keeps_its_action_as_raw_json(self, action: dict[str, Any]) -> None:
        request = decode(json.dumps({"type": "step", "data": action}))
        assert isinstance(request, StepMessage)
        assert json.loads(bytes(request.data)) == action

    def test_the_order_of_keys_does_not_matter(self) -> None:
        assert isinstance(decode('{"data":{"x":1},"type":"step"}'), StepMessage)

    def test_the_others(self) -> None:
        assert decode('{"type":"state"}') == StateMessage()
        assert decode(b'{"type":"close"}') == Close()
        assert isinstance(decode('{"type":"mcp","data":{}}'), Mcp)


class TestMalformed:
    @pytest.mark.parametrize(
        ("frame", "message"),
        [
            ("nope", "Invalid JSON: Expecting value: line 1 column 1 (char 0)"),
            ("", "Invalid JSON: Expecting value: line 1 column 1 (char 0)"),
            ("[1,2]", "Invalid JSON: expected an object, got an array"),
            ("5", "Invalid JSON: expected an object, got a number"),
            ("null", "Invalid JSON: expected an object, got null"),
            ('"x"', "Invalid JSON: expected an object, got a string"),
            ("true", "Invalid JSON: expected an object, got a boolean"),
            ('{"type":"step","data":{"x":NaN}}', "Invalid JSON: NaN is not a JSON number"),
            ('{"type":"step","data":{"x":-Infinity}}', "Invalid JSON: -Infinity is not a JSON number"),
            (b'{"type":"st\xffep"}', "Invalid JSON: not UTF-8 at byte 11"),
            ("[" * 100_000, "Invalid JSON: nested too deeply"),
            (
                '{"type":"step","data":' + '{"a":' * 50_000 + "1" + "}" * 50_001,
                "Invalid JSON: nested too deeply",
            ),
        ],
    )
    def test_what_is_not_json_is_said_to_be_not_json(self, frame: str | bytes, message: str) -> None:
        with pytest.raises(InvalidJSON) as caught:
            decode(frame)
        assert caught.value.message == message

    @pytest.mark.parametrize(
        "frame", ['{"type":"wat"}', "{}", '{"type":7}', '{"type":null}', '{"type":["reset"]}']
    )
    def test_unknown_types(self, frame: str) -> None:
        with pytest.raises(UnknownMessage, match="Unknown message type: "):
            decode(frame)

    @pytest.mark.parametrize(
        ("frame", "kind", "location"),
        [
            ('{"type":"step"}', "missing", ["data"]),
            ('{"type":"mcp"}', "missing", ["data"]),
            ('{"type":"step","data":[1]}', "dict_type", ["data"]),
            ('{"type":"reset","data":null}', "dict_type", ["data"]),
            ('{"type":"state","data":{}}', "extra_forbidden", ["data"]),
            ('{"type":"step","data":{},"timeout_s":5}', "extra_forbidden", ["timeout_s"]),
        ],
    )
    def test_wrong_shapes_are_explained_field_by_field(
        self, frame: str, kind: str, location: list[str]
    ) -> None:
        with pytest.raises(InvalidAction) as caught:
            decode(frame)
        (error,) = caught.value.errors
        assert (error["type"], error["loc"]) == (kind, location)

    @given(st.text() | st.binary() | json_values.map(json.dumps))
    def test_no_frame_does_anything_but_decode_or_fail_with_our_error(self, frame: str | bytes) -> None:
        try:
            decode(frame)
        except EnvTorchError as error:
            assert error.code in ("INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR")


def test_half_a_surrogate_pair_can_be_answered() -> None:
    with pytest.raises(UnknownMessage) as caught:
        decode('{"type":"\\ud800"}')
    assert json.loads(error_reply(caught.value).frame())["data"]["code"] == "UNKNOWN_TYPE"


class TestInvalid:
    def test_a_validator_raising_value_error_can_be_told(self) -> None:
        class Picky(BaseModel):
            x: int

            @field_validator("x")
            @classmethod
            def never(cls, x: int) -> int:
                raise ValueError("not that one")

        with pytest.raises(ValidationError) as caught:
            Picky(x=1)
        (error,) = json.loads(json.dumps(invalid(caught.value).errors))
        assert error["msg"] == "Value error, not that one"
        assert error["ctx"] == {"error": "not that one"}

    def test_a_validators_own_bug_is_told_too(self) -> None:
        assert invalid(ZeroDivisionError("oops")).errors[0]["msg"] == "ZeroDivisionError('oops')"

    def test_a_huge_input_is_not_sent_back(self) -> None:
        class Small(BaseModel):
            x: int

        with pytest.raises(ValidationError) as caught:
            Small.model_validate({"x": "y" * 10_000_000})
        assert len(json.dumps(invalid(caught.value).errors)) < MAX_ERROR_BYTES


def as_one_value(raw: bytes) -> Any:
    """What `raw` is, if it is one JSON value; None otherwise."""
    try:
        return json.loads(raw)
    except ValueError:
        return None
