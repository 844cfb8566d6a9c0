"""Requests with numbers and names that no session can use: refused at each door, and the session goes on."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from envtorch.protocol.extended import MAX_TOKEN_LENGTH
from envtorch.protocol.formats import JSON, MSGPACK, Format
from envtorch.server import create_app
from tests.server.environments import AsyncObedient, Obedient
from tests.server.test_extended import extended
from tests.support import PATIENCE_S, Running, running

LARGE = "x" * 15_000_000

every_format = pytest.mark.parametrize("format", [JSON, MSGPACK], ids=lambda format: format.name)


@pytest.fixture(
    scope="module",
    params=[(Obedient, None), (AsyncObedient, None), (Obedient, "process")],
    ids=["thread", "async", "process"],
)
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    environment, isolation = request.param
    with running(create_app(environment, max_concurrent_envs=8, isolation=isolation)) as running_server:
        yield running_server


@every_format
def test_a_timeout_that_is_no_positive_number_does_not_cost_the_session(
    format: Format, server: Running
) -> None:
    wrong: list[Any] = [0, -1, -0.5, 1e300]
    wrong += [math.nan, math.inf] if format is MSGPACK else []
    with extended(server, format) as wire:
        wire.open()
        wire.ask(type="reset", id=1)
        steps = {"ch": [0], "actions": [{"do": "x"}]}
        for id, timeout_s in enumerate(wrong, start=2):
            for request in (
                wire.step(id, "x"),
                {"type": "steps", "ch": 77, "id": id, "data": steps},
                {"type": "reset", "id": id},
                {"type": "state", "id": id},
                {"type": "fork", "id": id, "data": {"n": 1}},
                {"type": "mcp", "id": id, "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}},
            ):
                refused = wire.ask(**request, timeout_s=timeout_s)["data"]
                assert refused["code"] == "VALIDATION_ERROR", (request, timeout_s)
                assert "timeout_s is a number of seconds above 0" in refused["message"]
        assert wire.ask(type="state", id=50)["data"]["step_count"] == 0, "none of them ran"
        assert wire.ask(**wire.step(51, "fine", timeout_s=20))["data"]["observation"]["said"] == "fine"
        wire.close()


@pytest.mark.parametrize("wrong", ['"5"', "true", "NaN", "1e999", "[]", "{}"])
def test_a_timeout_that_is_no_number_is_no_message(wrong: str, server: Running) -> None:
    with extended(server) as wire:
        wire.open()
        wire.socket.send(f'{{"type":"step","id":1,"data":{{"do":"x"}},"timeout_s":{wrong}}}')
        (refused,) = wire.hear()
        assert refused["data"]["code"] == "INVALID_JSON"
        assert wire.ask(**wire.step(1, "fine"))["data"]["observation"]["said"] == "fine"
        wire.close()


@pytest.mark.parametrize("wrong", ["0", "-1", '"5"', "true", "NaN", "Infinity", "1e999", "1e300", "[]"])
def test_over_http_a_wrong_timeout_is_422_and_the_session_goes_on(wrong: str, server: Running) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        http.post("/reset")
        headers = {"content-type": "application/json"}
        body = f'{{"action":{{"do":"x"}},"timeout_s":{wrong}}}'
        refused = http.post("/step", content=body, headers=headers)
        assert refused.status_code == 422
        assert http.get("/state").json()["step_count"] == 0
        fine = http.post("/step", json={"action": {"do": "fine"}, "timeout_s": 20})
        assert fine.json()["observation"]["said"] == "fine"
        http.post("/close")


@every_format
def test_a_token_that_is_too_long_is_refused_by_its_limit(format: Format, server: Running) -> None:
    before = server.sessions.active
    with extended(server, format) as wire:
        for kind in ("session", "attach"):
            for token in ("x" * (MAX_TOKEN_LENGTH + 1), LARGE):
                refused = wire.ask(type=kind, id=1, data={"token": token})["data"]
                assert refused["code"] == "VALIDATION_ERROR"
                assert str(MAX_TOKEN_LENGTH) in refused["message"]
                assert len(refused["message"]) < 200
        assert server.sessions.active == before
        assert wire.open(token="x" * MAX_TOKEN_LENGTH)["token"] == "x" * MAX_TOKEN_LENGTH
        wire.close()


@every_format
def test_waits_and_graces_that_are_no_durations_open_no_session(format: Format, server: Running) -> None:
    wrong: list[Any] = [-1.0, 1e300, "5", True]
    wrong += [math.nan, math.inf] if format is MSGPACK else []
    before = server.sessions.active
    with extended(server, format) as wire:
        for value in wrong:
            for name in ("wait_s", "grace_s"):
                refused = wire.ask(type="session", id=1, data={name: value})["data"]
                assert refused["code"] == "VALIDATION_ERROR"
    assert server.sessions.active == before


@pytest.mark.parametrize("name", ["x" * 256, 5, True, [1], {"a": 1}], ids=lambda name: repr(name)[:9])
def test_a_request_id_over_http_is_a_text_within_its_limit(name: Any, server: Running) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        assert http.post("/reset", json={"request_id": name}).status_code == 422
        http.post("/reset")
        body = {"action": {"do": "x"}, "request_id": name}
        assert http.post("/step", json=body).status_code == 422
        assert http.post("/step", json=body | {"request_id": "x" * 255}).status_code == 200
        http.post("/close")


@pytest.mark.parametrize("door", ["/mcp", "/mcp in a session"])
def test_ids_of_json_rpc_have_a_limit(door: str, server: Running) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    if door != "/mcp":
        headers["MCP-Protocol-Version"] = "2025-06-18"
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, headers=headers) as http:
        request = {"jsonrpc": "2.0", "id": LARGE, "method": "tools/list"}
        answer = http.post("/mcp", json=request)
        assert len(answer.content) < 1000
        told = json.loads(answer.content)
        assert told["id"] is None
        assert told["error"]["code"] == -32600
        assert "512 characters" in told["error"]["message"]


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "openenv/session/close"])
def test_a_session_id_of_json_rpc_has_a_limit(method: str, server: Running) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"session_id": LARGE, "name": "tool"}}
    told = httpx.post(server.url + "/mcp", json=request, timeout=PATIENCE_S).json()
    assert told["error"]["code"] == -32602
    assert told["error"]["message"] == "Invalid params - 'session_id' has more than 512 characters"
