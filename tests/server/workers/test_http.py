"""HTTP and MCP sessions of one worker through the other, and the locks on the way."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.server.workers.support import WorkersServer, workers_server
from tests.support import PATIENCE_S

HERE, THERE = 0, 1


@pytest.fixture(scope="module")
def basket() -> Iterator[WorkersServer]:
    with workers_server(
        environment="tests.tools.environments:Basket",
        action_cls="envtorch.tools:CallToolAction",
        observation_cls="envtorch.tools:CallToolObservation",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def locked() -> Iterator[WorkersServer]:
    with workers_server(environ={"ENVTORCH_TOKEN": "the-right-one"}) as server:
        yield server


def rpc(http: httpx.Client, method: str, headers: dict[str, str] | None = None, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return http.post("/mcp", json=body, headers=headers).json()


def _sent(server: WorkersServer, request: str) -> bytes:
    """The answer of the other worker to a request as it stands: a client would tidy it up."""
    with socket.socket(socket.AF_UNIX) as line, suppress(ConnectionResetError):
        line.settimeout(PATIENCE_S)
        line.connect(server.address(THERE))
        line.sendall(request.encode())
        received = b""
        while part := line.recv(65536):
            received += part
    return received


class TestEpisodes:
    @pytest.mark.parametrize("way", ["header", "cookie"])
    def test_go_on_through_the_other_worker(self, way: str, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            token = here.post("/reset", json={"seed": 3}).headers["EnvTorch-Session"]
            if way == "header":
                there.headers["EnvTorch-Session"] = token
            else:
                there.headers["Cookie"] = f"EnvTorch-Session={token}"
            stepped = there.post("/step", json={"action": {}})
            assert stepped.json()["observation"]["total"] == 4
            assert stepped.json()["observation"]["process"] == two.process_of(HERE)
            assert stepped.headers["EnvTorch-Session"] == token
            assert len(stepped.headers.get_list("date")) == 1
            assert there.get("/state").json()["step_count"] == 4
            assert here.get("/state").json()["step_count"] == 4
            assert there.post("/close").json() == {"closed": True}
            lost = here.get("/state", headers={"EnvTorch-Session": token})
            assert (lost.status_code, lost.json()["code"]) == (404, "SESSION_ERROR")

    def test_of_the_open_reward_standard_are_forwarded_by_its_own_header(self, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            opened = here.post("/create_session").text
            token = opened.partition("data: ")[2].partition("\n")[0]
            foreign = there.post("/reset", json={}).headers["EnvTorch-Session"]
            both = {"X-Session-ID": token, "EnvTorch-Session": foreign}
            assert there.post("/create", json={"task_spec": {"seed": 3}}, headers=both).json()["sid"] == token
            called = there.post("/call", json={"name": "step", "input": {}}, headers=both)
            assert f"process: {two.process_of(HERE)}\\n" in called.text
            assert there.post("/delete", headers=both).status_code == 200
            assert there.post("/ping", headers=both).status_code == 410, "as a single worker answers"
            assert there.post("/delete", headers=both).status_code == 200
            assert there.post("/close", headers={"EnvTorch-Session": foreign}).json() == {"closed": True}

    @pytest.mark.parametrize("value", ["a ", " \t a\t", "Bearer "])
    def test_blanks_around_a_headers_value_pass(self, two: WorkersServer, value: str) -> None:
        with two.http(HERE) as here:
            token = here.post("/reset", json={"seed": 3}).headers["EnvTorch-Session"]
            head = f"Host: worker\r\nX-Note: {value}\r\nAuthorization: {value}\r\nConnection: close\r\n"
            answer = _sent(two, f"GET /state HTTP/1.1\r\n{head}EnvTorch-Session: {token}\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            here.post("/close", headers={"EnvTorch-Session": token})

    def test_a_request_id_is_heeded_whichever_way_it_comes(self, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            there.headers["EnvTorch-Session"] = here.post("/reset").headers["EnvTorch-Session"]
            body = {"action": {}, "request_id": "only-once"}
            answers = [http.post("/step", json=body).json() for http in (here, there, there, here)]
            assert [answer["observation"]["total"] for answer in answers] == [1, 1, 1, 1]
            there.post("/close")

    def test_errors_and_deadlines_pass(self, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            there.headers["EnvTorch-Session"] = here.post("/reset").headers["EnvTorch-Session"]
            assert there.post("/step", json={"action": {"wait_s": "soon"}}).status_code == 422
            assert there.post("/step", content=b"{").status_code == 422
            late = there.post("/step", json={"action": {"wait_s": 60}, "timeout_s": 0.05})
            assert (late.status_code, late.json()["code"]) == (504, "TIMED_OUT")
            assert there.get("/nothing/of/the/kind").status_code == 404
            there.post("/close")

    def test_large_bodies_pass_both_ways(self, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            there.headers["EnvTorch-Session"] = here.post("/reset").headers["EnvTorch-Session"]
            body = {"action": {"size": 3_000_000}, "padding": "x" * 3_000_000}
            assert len(there.post("/step", json=body).json()["observation"]["padding"]) == 3_000_000
            there.post("/close")

    def test_a_stream_of_chunks_passes(self, two: WorkersServer) -> None:
        def chunks() -> Iterator[bytes]:
            yield b'{"action":'
            yield b"{}}"

        with two.http(HERE) as here, two.http(THERE) as there:
            there.headers["EnvTorch-Session"] = here.post("/reset").headers["EnvTorch-Session"]
            headers = {"Content-Type": "application/json"}
            assert there.post("/step", content=chunks(), headers=headers).json()["observation"]["total"] == 1
            there.post("/close")

    def test_a_caller_who_leaves_does_not_take_the_step_back(self, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            there.headers["EnvTorch-Session"] = here.post("/reset").headers["EnvTorch-Session"]
            with pytest.raises(httpx.ReadTimeout):
                there.post("/step", json={"action": {"wait_s": 0.5}}, timeout=0.2)
            assert there.post("/step", json={"action": {}}).json()["observation"]["total"] == 2
            there.post("/close")


def test_the_web_page_has_one_worker(two: WorkersServer) -> None:
    with two.http(HERE) as here, two.http(THERE) as there:
        assert here.post("/web/process").text == there.post("/web/process").text
        assert here.get("/process").text != there.get("/process").text
        for worker in (HERE, THERE):
            with two.raw(worker, "/ws/ui") as socket:
                for _ in range(2):
                    socket.send("more")
                    assert socket.recv(PATIENCE_S) == here.get("/process").text
                socket.send("enough")
                with pytest.raises(ConnectionClosed):
                    socket.recv(PATIENCE_S)


class TestMcp:
    def test_an_agents_session_is_known_to_every_worker(self, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}},
            }
            named = {"Mcp-Session-Id": here.post("/mcp", json=body).headers["Mcp-Session-Id"]}
            note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            assert there.post("/mcp", json=note, headers=named).status_code == 202
            (tool,) = rpc(there, "tools/list", named)["result"]["tools"]
            assert tool["name"] == "step"
            totals = [
                rpc(http, "tools/call", named, name="step", arguments={})["result"]["structuredContent"]
                for http in (here, there, there)
            ]
            assert [total["observation"]["total"] for total in totals] == [1, 2, 3]
            assert there.delete("/mcp", headers=named).status_code == 204
            assert there.post("/mcp", json=body | {"method": "ping"}, headers=named).status_code == 404

    def test_a_trainers_session_is_handed_to_an_agent_elsewhere(self, two: WorkersServer) -> None:
        with two.http(HERE) as here, two.http(THERE) as there:
            token = here.post("/reset", json={"seed": 9}).headers["EnvTorch-Session"]
            told = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": told}
            begun = there.post("/mcp", json=body, headers={"EnvTorch-Session": token})
            assert begun.headers["Mcp-Session-Id"] == token
            rpc(there, "tools/call", {"Mcp-Session-Id": token}, name="step", arguments={})
            assert here.get("/state").json()["step_count"] == 10
            here.post("/close")


class TestJsonRpc:
    """OpenEnv's dialect, on an environment made of tools."""

    def test_a_session_is_found_by_its_id(self, basket: WorkersServer) -> None:
        with basket.http(HERE) as here, basket.http(THERE) as there:
            session_id = rpc(here, "openenv/session/create")["result"]["session_id"]
            assert len(rpc(there, "tools/list", session_id=session_id)["result"]["tools"]) == 3
            for http, count in ((here, 1), (there, 2), (there, 3)):
                call = rpc(http, "tools/call", session_id=session_id, name="put", arguments={"thing": "a"})
                assert call["result"]["data"] == count, call
            closed = rpc(there, "openenv/session/close", session_id=session_id)
            assert closed["result"] == {"session_id": session_id, "closed": True}
            for http in (here, there):
                gone = rpc(http, "tools/list", session_id=session_id)
                assert gone["error"]["code"] == -32602, gone

    def test_a_socket_closes_a_session_of_the_other_worker(self, basket: WorkersServer) -> None:
        with basket.http(HERE) as here, basket.raw(THERE, "/mcp") as socket:
            session_id = rpc(here, "openenv/session/create")["result"]["session_id"]
            params = {"session_id": session_id}
            request = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/close", "params": params}
            socket.send(json.dumps(request))
            assert '"closed":true' in str(socket.recv(PATIENCE_S))

    def test_a_call_without_a_session_has_one_for_itself(self, basket: WorkersServer) -> None:
        with basket.http(THERE) as there:
            for _ in range(2):
                assert rpc(there, "tools/call", name="look", arguments={})["result"]["data"] == []


class TestLocks:
    def test_an_empty_token_is_unauthorized_on_every_way(self, locked: WorkersServer) -> None:
        with locked.http(HERE, headers={"Authorization": "Bearer the-right-one"}) as here:
            token = here.post("/reset").headers["EnvTorch-Session"]
        head = f"Host: worker\r\nAuthorization: Bearer \r\nConnection: close\r\nEnvTorch-Session: {token}"
        assert _sent(locked, f"GET /state HTTP/1.1\r\n{head}\r\n\r\n").startswith(b"HTTP/1.1 401")

    def test_what_is_passed_on_meets_the_gate(self, locked: WorkersServer) -> None:
        right = {"Authorization": "Bearer the-right-one"}
        with locked.http(HERE, headers=right) as here, locked.http(THERE) as there:
            token = here.post("/reset").headers["EnvTorch-Session"]
            named = {"EnvTorch-Session": token}
            assert there.get("/state", headers=named).status_code == 401
            wrong = {**named, "Authorization": "Bearer another"}
            assert there.get("/state", headers=wrong).status_code == 401
            assert there.get("/state", headers=named | right).status_code == 200
            assert there.post("/mcp", json={}, headers={"Mcp-Session-Id": token}).status_code == 401
            assert there.get("/metrics").status_code == 401
            assert 'worker="0"' in there.get("/metrics", headers=right).text
            assert there.get("/health").status_code == 200

    @pytest.mark.parametrize("shown", ["", "guessed", "the-right-one"])
    def test_nobody_passes_for_a_worker(self, locked: WorkersServer, shown: str) -> None:
        pretence = {"EnvTorch-Worker": shown}
        with locked.http(HERE) as http:
            assert http.get("/state", headers=pretence).status_code == 401
            assert http.post("/.envtorch/rpc", json={}, headers=pretence).status_code == 401
        for worker, path in ((HERE, "/.envtorch/ws"), (THERE, "/ws/ui"), (HERE, "/ws/ui")):
            with pytest.raises(InvalidStatus), locked.raw(worker, path, additional_headers=pretence):
                pass

    def test_a_far_session_is_attached_past_the_gate_of_its_own_worker(self, locked: WorkersServer) -> None:
        right = {"Authorization": "Bearer the-right-one"}
        with locked.http(HERE, headers=right) as here:
            token = here.post("/reset", json={"seed": 5}).headers["EnvTorch-Session"]
            with locked.raw(THERE, subprotocols=["envtorch.v1"], additional_headers=right) as socket:
                socket.send(json.dumps({"type": "attach", "id": 1, "data": {"token": token}}))
                assert '"type":"session"' in str(socket.recv(PATIENCE_S))

    def test_the_private_sockets_are_this_users_alone(self, locked: WorkersServer) -> None:
        assert Path(locked.address(0)).parent.stat().st_mode & 0o777 == 0o700


def test_production_mode_is_closed_from_every_side() -> None:
    with workers_server(mode="production", environment="tests.server.workers.app:Teller") as server:
        with server.wire(HERE) as home, server.wire(THERE) as far:
            token = home.open()["token"]
            far.ask(type="attach", id=1, data={"token": token})
            assert far.ask(type="state", id=2)["data"]["code"] == "NOT_ALLOWED"
            far.close()
        with server.http(THERE) as http:
            assert http.post("/reset").status_code == 404


def test_the_body_of_a_request_that_asks_for_an_upgrade_is_passed_on(two: WorkersServer) -> None:
    asking = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}
    for worker in range(2):
        with two.http(worker) as http:
            answer = http.post("/web/process", headers=asking, content=b"{}")
            assert (answer.status_code, int(answer.text)) == (200, two.process_of(0))
