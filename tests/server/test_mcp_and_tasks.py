"""JSON-RPC through its three doors, and the task routes."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from envtorch import Tool
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import create_app
from tests import patient
from tests.support import PATIENCE_S, Running, eventually, running


class Workshop(EchoEnvironment):
    """Has tools that remember, and tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._total = 0

    def list_tools(self) -> Iterable[Tool]:
        return [Tool(name="add", description="Adds.", input_schema={"type": "object"})]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        if name != "add":
            raise KeyError(f"Unknown tool: {name!r}")
        self._total += arguments["n"]
        return {"total": self._total}

    def list_splits(self) -> list[str]:
        return ["train", "mine"]

    async def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return [{"split": split, "n": n} for n in range(3)]

    def num_tasks(self, split: str) -> int:
        return 3

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        return [{"n": n} for n in range(3)][index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Workshop, env_name="Workshop", max_concurrent_envs=3)) as running_server:
        yield running_server


def rpc(server: Running, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "method": method, "id": 1, "params": params}
    answer = patient.post(server.url + "/mcp", json=body)
    assert answer.status_code == 200
    return answer.json()


def add(server: Running, n: int, **params: Any) -> Any:
    return rpc(server, "tools/call", name="add", arguments={"n": n}, **params)


class TestOverHttp:
    def test_tools_are_listed(self, server: Running) -> None:
        (tool,) = rpc(server, "tools/list")["result"]["tools"]
        assert tool == {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}

    def test_a_session_remembers(self, server: Running) -> None:
        session = rpc(server, "openenv/session/create")["result"]["session_id"]
        assert add(server, 2, session_id=session)["result"] == {"total": 2}
        assert add(server, 3, session_id=session)["result"] == {"total": 5}
        closed = rpc(server, "openenv/session/close", session_id=session)["result"]
        assert closed == {"session_id": session, "closed": True}
        assert add(server, 1, session_id=session)["error"]["code"] == -32602

    def test_without_a_session_there_is_one_for_the_call(self, server: Running) -> None:
        assert [add(server, 2)["result"] for _ in range(2)] == [{"total": 2}] * 2
        assert server.sessions.active == 0

    def test_a_full_server_says_how_full(self, server: Running) -> None:
        created = [rpc(server, "openenv/session/create") for _ in range(4)]
        assert created[3]["error"]["data"] == {"active_sessions": 3, "max_sessions": 3}
        for answer in created[:3]:
            rpc(server, "openenv/session/close", session_id=answer["result"]["session_id"])

    @pytest.mark.parametrize(
        ("method", "params", "code", "message"),
        [
            ("tools/call", {}, -32602, "Missing 'name' in params"),
            ("tools/call", {"name": "add", "arguments": [1]}, -32602, "'arguments' must be an object"),
            ("tools/call", {"name": "nope"}, -32603, "Unknown tool"),
            ("tools/call", {"name": "add", "session_id": "zz"}, -32602, "Unknown session_id: zz"),
            ("tools/list", {"session_id": "zz"}, -32602, "Unknown session_id: zz"),
            ("openenv/session/close", {}, -32602, "Invalid params - 'session_id' is required"),
            ("ping", {}, -32601, "Method not found: ping"),
        ],
    )
    def test_errors(
        self, server: Running, method: str, params: dict[str, Any], code: int, message: str
    ) -> None:
        error = rpc(server, method, **params)["error"]
        assert error["code"] == code
        assert message in error["message"]


class TestOverSockets:
    def test_a_socket_has_its_own_session(self, server: Running) -> None:
        with server.socket("/mcp") as socket:
            call = {
                "jsonrpc": "2.0",
                "method": "tools/call",
                "id": 5,
                "params": {"name": "add", "arguments": {"n": 4}},
            }
            for expected in (4, 8):
                socket.send(json.dumps(call))
                answer = json.loads(socket.recv(timeout=PATIENCE_S))
                assert (answer["id"], answer["result"]) == (5, {"total": expected})

    def test_the_session_socket_speaks_it_too(self, server: Running) -> None:
        with server.socket() as socket:
            call = {"jsonrpc": "2.0", "method": "openenv/session/create", "id": "a"}
            socket.send(json.dumps({"type": "mcp", "data": call}))
            session_id = json.loads(socket.recv(timeout=PATIENCE_S))["data"]["result"]["session_id"]
            close = {
                "jsonrpc": "2.0",
                "method": "openenv/session/close",
                "id": 2,
                "params": {"session_id": session_id},
            }
            socket.send(json.dumps({"type": "mcp", "data": close}))
            assert (
                "Cannot close active"
                in json.loads(socket.recv(timeout=PATIENCE_S))["data"]["error"]["message"]
            )

    def test_the_handshake_of_mcp_clients(self, server: Running) -> None:
        """Create over HTTP, attach a socket, call over HTTP, detach, close: one session all along."""
        session = rpc(server, "openenv/session/create")["result"]["session_id"]
        with server.socket(f"/ws?session_id={session}") as socket:
            socket.send('{"type":"reset","data":{"episode_id":"e"}}')
            socket.recv(timeout=PATIENCE_S)
            assert add(server, 7, session_id=session)["result"] == {"total": 7}
            with server.socket(f"/ws?session_id={session}") as second:
                refusal = json.loads(second.recv(timeout=PATIENCE_S))["data"]
                assert refusal["code"] == "SESSION_ERROR"
                assert "already has an attached WebSocket" in refusal["message"]
            socket.send('{"type":"close"}')
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=PATIENCE_S)
        eventually(lambda: not server.sessions.get(session).socket_attached, "the socket is detached")
        assert add(server, 1, session_id=session)["result"] == {"total": 8}
        rpc(server, "openenv/session/close", session_id=session)

    def test_closing_an_attached_session_waits_for_its_socket(self, server: Running) -> None:
        session = rpc(server, "openenv/session/create")["result"]["session_id"]
        with server.socket(f"/ws?session_id={session}") as socket:
            socket.send('{"type":"state"}')
            socket.recv(timeout=PATIENCE_S)
            closing = rpc(server, "openenv/session/close", session_id=session)["result"]
            assert closing == {"session_id": session, "closed": False, "closing": True}
        eventually(lambda: server.sessions.find(session) is None, "the session ends with its socket")

    def test_an_unknown_session_cannot_be_attached(self, server: Running) -> None:
        with server.socket("/ws?session_id=zz") as socket:
            assert json.loads(socket.recv(timeout=PATIENCE_S))["data"]["message"] == "Unknown session_id: zz"


class TestSessionsByTheirId:
    """OpenEnv's dialect names sessions by id. An id is no secret, so only sessions made for it are found."""

    def test_a_session_of_another_door_is_not_found(self, server: Running) -> None:
        with server.socket() as socket:
            socket.send('{"type":"reset","data":{}}')
            socket.recv(timeout=PATIENCE_S)
            (session,) = server.sessions.all()
            for method in ("tools/list", "tools/call", "openenv/session/close"):
                error = rpc(server, method, name="add", arguments={"n": 1}, session_id=session.id)["error"]
                assert (error["code"], error["message"]) == (-32602, f"Unknown session_id: {session.id}")
            with server.socket(f"/ws?session_id={session.id}") as second:
                told = json.loads(second.recv(timeout=PATIENCE_S))["data"]["message"]
                assert told == f"Unknown session_id: {session.id}"
            assert session.steps == 0
        eventually(lambda: server.sessions.active == 0, "the session ends with its socket")

    def test_a_socket_that_asks_for_its_id_opens_its_session_to_it(self, server: Running) -> None:
        with server.socket() as socket:
            call = {"jsonrpc": "2.0", "method": "openenv/session/create", "id": "a"}
            socket.send(json.dumps({"type": "mcp", "data": call}))
            session = json.loads(socket.recv(timeout=PATIENCE_S))["data"]["result"]["session_id"]
            assert add(server, 2, session_id=session)["result"] == {"total": 2}
        eventually(lambda: server.sessions.active == 0, "the session ends with its socket")


@pytest.fixture(scope="module")
def production() -> Iterator[Running]:
    with running(create_app(Workshop, name="Workshop", sessions=2, mode="production")) as running_server:
        yield running_server


class TestProductionMode:
    def test_the_task_routes_stay(self, production: Running) -> None:
        """They begin no episode and step in none; OpenEnv's server has them in both modes, too."""
        assert patient.get(production.url + "/list_environments").json() == ["Workshop"]
        assert patient.get(production.url + "/workshop/splits").status_code == 200
        answer = patient.post(production.url + "/workshop/task", json={"split": "train", "index": 1})
        assert answer.json() == {"task": {"n": 1}}
        assert production.sessions.active == 0

    def test_openapi_describes_what_is_offered(self, production: Running) -> None:
        told = patient.get(production.url + "/openapi.json").json()
        assert "tools of Workshop" in told["info"]["description"]
        assert not {"/reset", "/step", "/state", "/close"} & set(told["paths"])
        assert "/workshop/tasks" not in told["paths"]
        assert "/{env_name}/tasks" in told["paths"]


class TestTasks:
    def post(self, server: Running, path: str, **body: Any) -> httpx.Response:
        return patient.post(server.url + path, json=body)

    def test_splits_are_named_and_typed(self, server: Running) -> None:
        assert patient.get(server.url + "/workshop/splits").json() == [
            {"name": "train", "type": "train"},
            {"name": "mine", "type": "validation"},
        ]

    def test_tasks(self, server: Running) -> None:
        answer = self.post(server, "/Workshop/tasks", split="train").json()
        assert (len(answer["tasks"]), answer["env_name"]) == (3, "Workshop")
        assert self.post(server, "/Workshop/num_tasks", split="train").json() == {"num_tasks": 3}
        assert self.post(server, "/Workshop/task", split="train", index=2).json() == {"task": {"n": 2}}

    def test_what_is_not_there(self, server: Running) -> None:
        unknown = patient.get(server.url + "/other/splits")
        assert (unknown.status_code, unknown.json()["detail"]) == (404, "unknown environment 'other'")
        absent = self.post(server, "/Workshop/task_range", split="train")
        assert absent.status_code == 501
        assert absent.json()["detail"] == "get_task_range is not supported for this environment"
        beyond = self.post(server, "/Workshop/task", split="train", index=9)
        assert (beyond.status_code, beyond.json()["detail"]) == (400, "Invalid task index")
