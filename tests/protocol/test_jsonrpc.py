"""JSON-RPC requests and responses."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envtorch.errors import CapacityReached, EnvironmentFailed, InvalidAction
from envtorch.protocol.jsonrpc import Code, RpcError, decode, failure, success


def test_a_request_is_read() -> None:
    request = decode('{"jsonrpc":"2.0","method":"tools/list","id":7}')
    assert (request.method, request.id, request.params) == ("tools/list", 7, {})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("nope", Code.PARSE_ERROR),
        (b"\xff", Code.PARSE_ERROR),
        ("{}", Code.INVALID_REQUEST),
        ("[]", Code.INVALID_REQUEST),
        ('{"jsonrpc":"1.0","method":"x"}', Code.INVALID_REQUEST),
        ('{"jsonrpc":"2.0","method":"x","params":[1]}', Code.INVALID_REQUEST),
        ('{"jsonrpc":"2.0","method":"x","surprise":1}', Code.INVALID_REQUEST),
    ],
)
def test_what_is_no_request_is_refused(text: str | bytes, code: Code) -> None:
    with pytest.raises(RpcError) as caught:
        decode(text)
    assert caught.value.code is code


@given(st.text() | st.binary())
def test_no_text_does_anything_else(text: str | bytes) -> None:
    try:
        decode(text)
    except RpcError as error:
        assert error.code in (Code.PARSE_ERROR, Code.INVALID_REQUEST)


@given(
    st.none() | st.integers(-(2**53), 2**53) | st.text(alphabet=st.characters(codec="utf-8")), st.booleans()
)
def test_a_response_echoes_its_id(id: Any, ok: bool) -> None:
    answer = success(id, b'{"x":1}') if ok else failure(id, RpcError(Code.INTERNAL_ERROR, "no"))
    response = json.loads(answer)
    assert response["id"] == id
    assert response.get("result") == ({"x": 1} if ok else None)


def test_our_errors_become_json_rpcs() -> None:
    full = RpcError.of(CapacityReached.of(3, 3))
    assert (full.code, full.data) == (Code.SERVER_ERROR, {"active_sessions": 3, "max_sessions": 3})
    assert RpcError.of(EnvironmentFailed("tool exploded")).code is Code.INTERNAL_ERROR
    wrong = RpcError.of(InvalidAction("no such argument"))
    assert (wrong.code, wrong.data) == (Code.INTERNAL_ERROR, {"code": "VALIDATION_ERROR"})
