"""MCP's own rules at `/mcp`, as a table, and the official clients in every revision they speak."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from envtorch import Tool
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app
from envtorch.types import DescribedTool
from tests.support import PATIENCE_S, Running, running

HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
STATELESS = "2026-07-28"


class Adder(EchoEnvironment):
    """Has a tool that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self._total = 0

    def list_tools(self) -> Iterable[Tool]:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return [
            DescribedTool(
                name="add",
                description="Adds.",
                input_schema=schema,
                title="Adder",
                output_schema={"type": "object", "properties": {"total": {"type": "integer"}}},
                annotations={"readOnlyHint": False},
                icons=[{"src": "https://example.org/add.png", "mimeType": "image/png"}],
                meta={"example.org/kind": "sum"},
            )
        ]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        self._total += arguments["n"]
        return {"total": self._total}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Adder, max_concurrent_envs=16)) as running_server:
        yield running_server


@pytest.fixture
def session(server: Running) -> Iterator[dict[str, str]]:
    """The header of a session that was initialised."""
    answer = post(server, initialize())
    headers = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
    yield headers
    httpx.delete(server.url + "/mcp", headers=headers)
    assert server.sessions.active == 0


def initialize(revision: str = HANDSHAKES[0], **fields: Any) -> dict[str, Any]:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params, **fields}


def call(id: Any = 2, **fields: Any) -> dict[str, Any]:
    params = {"name": "add", "arguments": {"n": 1}}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params, **fields}


def post(server: Running, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **headers}
    return httpx.post(server.url + "/mcp", content=content, headers=sent, timeout=PATIENCE_S)


INVALID: dict[str, tuple[Any, int, int, Any]] = {
    "malformed JSON": (b'{"jsonrpc":', 400, -32700, None),
    "an empty body": (b"", 400, -32700, None),
    "a number": (5, 400, -32600, None),
    "an empty batch": ([], 400, -32600, None),
    "a batch without measure": ([1] * 1001, 400, -32600, None),
    "no jsonrpc": ({"id": 7, "method": "ping"}, 400, -32600, 7),
    "another jsonrpc": ({"jsonrpc": "1.0", "id": 7, "method": "ping"}, 400, -32600, 7),
    "no method": ({"jsonrpc": "2.0", "id": 7}, 400, -32600, 7),
    "a method that is a number": ({"jsonrpc": "2.0", "id": 7, "method": 5}, 400, -32600, 7),
    "an id beyond all numbers": (b'{"jsonrpc":"2.0","id":1e400,"method":"ping"}', 400, -32600, None),
    "an id that is null": ({"jsonrpc": "2.0", "id": None, "method": "ping"}, 400, -32600, None),
    "an id that is a list": ({"jsonrpc": "2.0", "id": [1], "method": "ping"}, 400, -32600, None),
    "params that are a list": (call(7, params=[1]), 200, -32602, 7),
    "params that are a string": (call(7, params="x"), 200, -32602, 7),
    "arguments that are a list": (call(7, params={"name": "add", "arguments": [1]}), 200, -32602, 7),
    "no name": (call(7, params={}), 200, -32602, 7),
    "an unknown method": ({"jsonrpc": "2.0", "id": 7, "method": "nope"}, 200, -32601, 7),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_is_no_request_is_answered_as_the_protocol_says(
    server: Running, session: dict[str, str], name: str
) -> None:
    body, status, code, id = INVALID[name]
    answer = post(server, body, **session)
    assert answer.status_code == status
    assert (answer.json()["error"]["code"], answer.json()["id"]) == (code, id)


@pytest.mark.parametrize("id", [0, -3, "", "a", 1.5, 10**30, -(2**63)])
def test_an_id_is_echoed(server: Running, session: dict[str, str], id: Any) -> None:
    assert post(server, {"jsonrpc": "2.0", "id": id, "method": "ping"}, **session).json() == {
        "jsonrpc": "2.0",
        "id": id,
        "result": {},
    }


def test_a_float_id_is_echoed_on_openenvs_dialect_too(server: Running) -> None:
    assert post(server, {"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"}).json()["id"] == 1.5


def test_an_id_that_cannot_be_echoed_is_refused_on_openenvs_dialect_too(server: Running) -> None:
    error = post(server, b'{"jsonrpc":"2.0","id":1e400,"method":"tools/list"}').json()["error"]
    assert error["code"] == -32600
    assert "finite number" in error["message"]


@pytest.mark.parametrize("fields", [{}, {"params": None}], ids=["no params", "null"])
def test_an_mcp_client_that_initializes_without_params_is_told_what_it_needs(
    server: Running, fields: dict[str, Any]
) -> None:
    revision = {"MCP-Protocol-Version": HANDSHAKES[0]}
    answer = post(server, {"jsonrpc": "2.0", "id": 1, "method": "initialize", **fields}, **revision)
    assert answer.json()["error"] == {
        "code": -32602,
        "message": "Invalid params: initialize needs 'protocolVersion'",
        "data": None,
    }
    assert server.sessions.active == 0


def test_initialize_without_params_is_answered_as_openenv_does(server: Running) -> None:
    error = post(server, {"jsonrpc": "2.0", "id": 1, "method": "initialize"}).json()["error"]
    assert (error["code"], error["message"]) == (-32601, "Method not found: initialize")


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "message",
    [
        {"method": LONG},
        {"method": "tools/call", "params": {"name": LONG, "arguments": {}}},
        {"method": "tools/list", "params": {"session_id": LONG}},
        {"method": "openenv/session/close", "params": {"session_id": LONG}},
        {"method": "initialize", "params": {LONG: 1}},
        {"method": "ping", LONG: 1},
    ],
    ids=["method", "tool", "list", "close", "initialize", "extra field"],
)
@pytest.mark.parametrize("is_mcp", [True, False], ids=["mcp", "openenv"])
def test_an_error_does_not_echo_what_has_no_measure(
    server: Running, session: dict[str, str], message: dict[str, Any], is_mcp: bool
) -> None:
    answer = post(server, {"jsonrpc": "2.0", "id": 1, **message}, **(session if is_mcp else {}))
    assert len(answer.content) < 20_000


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        {"jsonrpc": "2.0", "id": "x", "error": {"code": -1, "message": "no"}},
    ],
    ids=["notification", "result", "error"],
)
def test_what_wants_no_answer_gets_202(
    server: Running, session: dict[str, str], message: dict[str, Any]
) -> None:
    answer = post(server, message, **session)
    assert (answer.status_code, answer.content) == (202, b"")


class TestBatches:
    @pytest.mark.parametrize("revision", [None, "2025-03-26"])
    def test_requests_are_answered_in_order(
        self, server: Running, session: dict[str, str], revision: str | None
    ) -> None:
        headers = {**session, **({"MCP-Protocol-Version": revision} if revision else {})}
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        answers = post(server, [call(1), note, {"id": 2}, call("c")], **headers).json()
        assert [answer["id"] for answer in answers] == [1, 2, "c"]
        assert answers[1]["error"]["code"] == -32600
        assert answers[2]["result"]["structuredContent"] == {"total": 2}

    def test_one_without_requests_gets_202(self, server: Running, session: dict[str, str]) -> None:
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert post(server, [note, note], **session).status_code == 202

    def test_later_revisions_have_none(self, server: Running, session: dict[str, str]) -> None:
        answer = post(server, [call()], **session, **{"MCP-Protocol-Version": "2025-11-25"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)


class TestSessions:
    @pytest.mark.parametrize("revision", HANDSHAKES)
    def test_a_revision_that_is_known_is_agreed_to(self, server: Running, revision: str) -> None:
        answer = post(server, initialize(revision))
        assert answer.json()["result"]["protocolVersion"] == revision
        httpx.delete(server.url + "/mcp", headers={"Mcp-Session-Id": answer.headers["mcp-session-id"]})

    @pytest.mark.parametrize("revision", ["1999-01-01", STATELESS])
    def test_one_that_has_no_handshake_is_answered_with_the_newest(
        self, server: Running, revision: str
    ) -> None:
        answer = post(server, initialize(revision))
        assert answer.json()["result"]["protocolVersion"] == HANDSHAKES[0]
        httpx.delete(server.url + "/mcp", headers={"Mcp-Session-Id": answer.headers["mcp-session-id"]})

    @pytest.mark.parametrize("params", [[1], {}, {"protocolVersion": 5}], ids=str)
    def test_initialize_without_a_revision_opens_nothing(self, server: Running, params: Any) -> None:
        assert post(server, initialize(params=params)).json()["error"]["code"] == -32602
        assert server.sessions.active == 0

    def test_a_second_initialize_opens_no_other(self, server: Running, session: dict[str, str]) -> None:
        again = post(server, initialize(), **session)
        assert again.headers["mcp-session-id"] == session["Mcp-Session-Id"]
        assert server.sessions.active == 1

    def test_an_unknown_session_is_404_and_a_missing_one_400(self, server: Running) -> None:
        assert post(server, call(), **{"Mcp-Session-Id": "nope"}).status_code == 404
        assert post(server, initialize(), **{"Mcp-Session-Id": "nope"}).status_code == 404
        assert post(server, call(), **{"MCP-Protocol-Version": HANDSHAKES[0]}).status_code == 400
        assert httpx.delete(server.url + "/mcp").status_code == 400
        assert httpx.delete(server.url + "/mcp", headers={"Mcp-Session-Id": "nope"}).status_code == 404

    def test_a_session_ends_with_delete(self, server: Running) -> None:
        opened = {"Mcp-Session-Id": post(server, initialize()).headers["mcp-session-id"]}
        assert httpx.delete(server.url + "/mcp", headers=opened).status_code == 204
        assert post(server, call(), **opened).status_code == 404

    def test_an_unknown_revision_is_refused_with_those_there_are(
        self, server: Running, session: dict[str, str]
    ) -> None:
        answer = post(server, call(), **session, **{"MCP-Protocol-Version": "1999-01-01"})
        assert answer.status_code == 400
        assert answer.json()["error"]["data"]["supported"] == [*HANDSHAKES, STATELESS]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH"])
def test_other_methods_are_told_which_there_are(server: Running, method: str) -> None:
    answer = httpx.request(method, server.url + "/mcp")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST, DELETE")


def test_a_tool_is_described_in_full(server: Running, session: dict[str, str]) -> None:
    listed = post(server, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, **session)
    (tool,) = listed.json()["result"]["tools"]
    assert tool["title"] == "Adder"
    assert tool["outputSchema"]["properties"] == {"total": {"type": "integer"}}
    assert tool["annotations"] == {"readOnlyHint": False}
    assert tool["icons"][0]["src"].endswith("add.png")
    assert tool["_meta"] == {"example.org/kind": "sum"}


# The revision in which every request stands for itself.


def stateless(method: str, id: Any = 1, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
    return body, {**headers, **({"Mcp-Name": params["name"]} if "name" in params else {})}


class TestStateless:
    def test_a_session_that_is_named_keeps_its_state(self, server: Running) -> None:
        opened = httpx.post(server.url + "/reset").headers["envtorch-session"]
        for total in (1, 2):
            body, headers = stateless("tools/call", name="add", arguments={"n": 1})
            answer = post(server, body, **headers, **{"EnvTorch-Session": opened}).json()["result"]
            assert answer["structuredContent"] == {"total": total}
            assert answer["resultType"] == "complete"
        httpx.post(server.url + "/close", headers={"EnvTorch-Session": opened})

    def test_a_call_that_names_none_is_told_what_to_send(self, server: Running) -> None:
        body, headers = stateless("tools/call", name="add", arguments={"n": 1})
        error = post(server, body, **headers).json()["error"]
        assert "EnvTorch-Session" in error["message"]
        assert server.sessions.active == 0

    def test_a_session_that_is_gone_is_not_replaced(self, server: Running) -> None:
        body, headers = stateless("tools/call", name="add", arguments={"n": 1})
        error = post(server, body, **headers, **{"EnvTorch-Session": "x" * 32}).json()["error"]
        assert "gone" in error["message"]

    def test_a_client_that_negotiates_is_offered_revisions_with_sessions(self, server: Running) -> None:
        body, headers = stateless("server/discover")
        assert post(server, body, **headers).json()["result"]["supportedVersions"] == list(HANDSHAKES)
        named = post(server, body, **headers, **{"EnvTorch-Session": "x" * 32}).json()["result"]
        assert named["supportedVersions"] == [STATELESS, *HANDSHAKES]

    @pytest.mark.parametrize("header", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
    def test_headers_must_match_the_body(self, server: Running, header: str) -> None:
        body, headers = stateless("tools/call", name="add", arguments={"n": 1})
        wrong = {**headers, header: HANDSHAKES[0] if header == "MCP-Protocol-Version" else "other"}
        if header == "MCP-Protocol-Version":
            assert post(server, body, **wrong).status_code == 400
        else:
            answer = post(server, body, **wrong)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)

    def test_the_envelope_is_required(self, server: Running) -> None:
        body, headers = stateless("tools/list")
        body["params"] = {}
        answer = post(server, body, **headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)

    def test_an_unknown_method_is_404(self, server: Running) -> None:
        body, headers = stateless("ping")
        answer = post(server, body, **headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


# The official clients.


@asynccontextmanager
async def official(server: Running, mode: str) -> AsyncIterator[Any]:
    mcp = pytest.importorskip("mcp")
    if not hasattr(mcp, "Client"):
        pytest.skip("this version of mcp has no client that negotiates the revision")
    from mcp.client.streamable_http import streamable_http_client

    async with mcp.Client(streamable_http_client(server.url + "/mcp"), mode=mode) as client:
        yield client


@asynccontextmanager
async def of_fastmcp(server: Running, mode: str) -> AsyncIterator[Any]:
    fastmcp = pytest.importorskip("fastmcp")
    async with fastmcp.Client(server.url + "/mcp", mode=mode) as client:
        yield client


async def play_two(server: Running, kind: Any, mode: str) -> None:
    async with kind(server, mode) as one, kind(server, mode) as two:
        for client in (one, two):
            tools = await client.list_tools()
            (tool,) = getattr(tools, "tools", tools)
            assert tool.name == "add"
        for total in (2, 4, 6):
            assert await added(one, 2) == total
            assert await added(two, 3) == total * 3 // 2


async def added(client: Any, n: int) -> int:
    answer = await client.call_tool("add", {"n": n})
    total: int = answer.structured_content["total"]
    return total


@pytest.mark.parametrize("mode", ["legacy", "auto", STATELESS])
@pytest.mark.parametrize("kind", [official, of_fastmcp], ids=["mcp", "fastmcp"])
def test_official_clients_keep_their_state_two_at_once(server: Running, kind: Any, mode: str) -> None:
    asyncio.run(play_two(server, kind, mode))


# Production mode.


def test_production_mode_offers_no_step_over_mcp() -> None:
    with running(create_app(EchoEnvironment, max_concurrent_envs=2, mode="production")) as server:
        opened = {"Mcp-Session-Id": post(server, initialize()).headers["mcp-session-id"]}
        listed = post(server, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, **opened)
        assert listed.json()["result"]["tools"] == []
        step = {"name": "step", "arguments": {"message": "hello"}}
        assert post(server, call(params=step), **opened).json()["error"]["code"] == -32602
        (session,) = server.sessions.all()
        assert session.steps == 0
