"""The HTTP door: stateful by header and cookie, and honest about itself."""

import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from envtorch import ConcurrencyConfig
from envtorch.envs.echo_env import EchoObservation
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.server import HTTPEnvServer, create_app
from tests import patient
from tests.server.environments import Obedient, Unbuildable
from tests.support import PATIENCE_S, Running, eventually, running

HEADER = "EnvTorch-Session"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=8)) as running_server:
        yield running_server


@pytest.fixture
def alone() -> Iterator[Running]:
    with running(create_app(Obedient, sessions=1)) as running_server:
        yield running_server


def step(do: str = "x") -> dict[str, object]:
    return {"action": {"do": do}}


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/step", {"action": LONG}),
        ("/step", {"action": {"do": [LONG]}}),
        ("/step", {"action": {"do": "x", LONG: 1}}),
        ("/step", {"action": {"do": "x"}, "timeout_s": LONG}),
        ("/reset", {"seed": LONG}),
        ("/reset", [LONG]),
    ],
    ids=["action", "field", "name of a field", "timeout", "seed", "list"],
)
def test_an_invalid_body_is_not_sent_back_whole(server: Running, path: str, body: object) -> None:
    with patient.Client(base_url=server.url) as http:
        http.post("/reset").raise_for_status()
        answer = http.post(path, json=body)
        http.post("/close")
    assert answer.status_code == 422
    assert len(answer.content) < 70_000
    assert answer.json()["detail"]


SECRET = "sk-4f1c"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/step", {"action": SECRET}),
        ("/step", {"actoin": {"do": SECRET}}),
        ("/step", {"action": {"do": [SECRET]}}),
        ("/step", {"action": {"key": SECRET}}),
        ("/step", {"action": {"do": "x"}, "timeout_s": SECRET}),
        ("/reset", {"seed": SECRET}),
        ("/reset", {"episode_id": [SECRET]}),
        ("/reset", [SECRET]),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": SECRET}),
        ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "token": SECRET}),
        ("/call", {"name": "step", "input": SECRET}),
    ],
)
def test_a_refused_body_is_not_repeated_in_the_answer(
    server: Running, path: str, body: object, caplog: pytest.LogCaptureFixture
) -> None:
    with patient.Client(base_url=server.url) as http:
        http.post("/reset").raise_for_status()
        answer = http.post(path, json=body)
        http.post("/close")
    assert answer.status_code in (200, 400, 422)
    assert "error" in answer.text or "detail" in answer.text
    assert SECRET not in answer.text + caplog.text


def test_a_refused_action_is_not_repeated_on_the_websocket(server: Running) -> None:
    with server.socket() as socket:
        socket.send('{"type":"reset","data":{}}')
        socket.recv()
        socket.send(json.dumps({"type": "step", "data": {"do": [SECRET]}}))
        answer = str(socket.recv())
    assert '"VALIDATION_ERROR"' in answer
    assert SECRET not in answer


def raw_step(server: Running, token: str, do: str) -> bytes:
    body = json.dumps(step(do)).encode()
    host = server.url.removeprefix("http://")
    lines = ["POST /step HTTP/1.1", f"Host: {host}", f"{HEADER}: {token}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "Content-Type: application/json", "", ""]).encode() + body


def test_a_client_that_leaves_requests_unanswered_is_no_error_of_the_servers(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    Obedient.gate.clear()
    Obedient.entered.clear()
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addHandler(caplog.handler)
    try:
        with patient.Client(base_url=server.url) as http:
            token = http.post("/reset").headers[HEADER]
            host, port = server.url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), PATIENCE_S) as raw:
                raw.sendall(raw_step(server, token, "wait") + raw_step(server, token, "x") * 20)
                assert Obedient.entered.wait(PATIENCE_S)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset it
            for _ in range(5):  # meanwhile the server finds that the connection is gone
                http.get("/health").raise_for_status()
            Obedient.gate.set()
            for _ in range(5):  # made after the step that waited, whose answer nobody takes
                http.post("/step", json=step()).raise_for_status()
            http.post("/close")
    finally:
        uvicorn_log.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestAnEpisode:
    def test_a_cookie_keeps_it(self, server: Running) -> None:
        with patient.Client(base_url=server.url) as http:
            assert http.post("/reset", json={"episode_id": "mine", "level": 2}).status_code == 200
            for _ in range(3):
                http.post("/step", json=step()).raise_for_status()
            state = http.get("/state").json()
            assert state == {"episode_id": "mine", "step_count": 3, "events": ["level"]}
            assert http.post("/close").json() == {"closed": True}

    def test_a_header_keeps_it(self, server: Running) -> None:
        session = patient.post(server.url + "/reset").headers[HEADER]
        answer = patient.post(server.url + "/step", json=step(), headers={HEADER: session})
        assert answer.headers[HEADER] == session
        assert patient.get(server.url + "/state", headers={HEADER: session}).json()["step_count"] == 1
        patient.post(server.url + "/close", headers={HEADER: session})

    def test_reset_within_a_session_stays_in_it(self, server: Running) -> None:
        with patient.Client(base_url=server.url) as http:
            first = http.post("/reset").headers[HEADER]
            assert http.post("/reset").headers[HEADER] == first
            http.post("/close")

    def test_two_callers_have_two_episodes(self, server: Running) -> None:
        with patient.Client(base_url=server.url) as one, patient.Client(base_url=server.url) as two:
            one.post("/reset")
            two.post("/reset")
            one.post("/step", json=step())
            assert [http.get("/state").json()["step_count"] for http in (one, two)] == [1, 0]
            one.post("/close")
            two.post("/close")

    def test_keywords_reach_the_environment(self, server: Running) -> None:
        with patient.Client(base_url=server.url) as http:
            http.post("/reset")
            body = {**step("timeout"), "timeout_s": 4.5, "request_id": "r", "whatever": 1}
            assert http.post("/step", json=body).json()["observation"]["said"] == "4.5"
            http.post("/close")


class TestWhoIsCalling:
    def test_without_an_id_a_server_of_many_says_what_to_send(self, server: Running) -> None:
        for answer in (patient.post(server.url + "/step", json=step()), patient.get(server.url + "/state")):
            assert answer.status_code == 409
            assert HEADER in answer.json()["detail"]
            assert "call POST /reset first" in answer.json()["detail"]

    def test_with_several_sessions_a_request_must_name_one(self, server: Running) -> None:
        opened = [patient.post(server.url + "/reset").headers[HEADER] for _ in range(2)]
        answer = patient.post(server.url + "/step", json=step())
        for token in opened:
            patient.post(server.url + "/close", headers={HEADER: token})
        assert answer.status_code == 409
        assert f"several sessions are open: send the {HEADER} header" in answer.json()["detail"]

    def test_a_first_reset_that_fails_takes_no_slot(self) -> None:
        """Its caller is not told the token, so nobody could close it."""

        class Refusing(EchoEnvironment):
            def reset(self, seed: int | None = None, episode_id: str | None = None) -> EchoObservation:
                raise RuntimeError("not today")

        with running(create_app(Refusing, sessions=3)) as server:
            for _ in range(4):  # one more than there is room for
                assert patient.post(server.url + "/reset").status_code == 500
            eventually(lambda: server.sessions.active == 0, "every slot is free")

    def test_a_session_that_is_gone_is_not_replaced(self, server: Running) -> None:
        answer = patient.post(server.url + "/step", json=step(), headers={HEADER: "gone"})
        assert (answer.status_code, answer.json()["code"]) == (404, "SESSION_ERROR")

    def test_without_an_id_a_server_of_one_has_one_episode(self, alone: Running) -> None:
        patient.post(alone.url + "/reset", json={"episode_id": "curl"})
        patient.post(alone.url + "/step", json=step())
        assert patient.get(alone.url + "/state").json()["step_count"] == 1

    def test_the_anonymous_session_makes_room_for_a_socket(self, alone: Running) -> None:
        patient.post(alone.url + "/reset", json={"episode_id": "curl"})
        with alone.socket() as socket:
            socket.send('{"type":"state"}')
            assert '"episode_id":null' in str(socket.recv(timeout=PATIENCE_S))
            refused = patient.post(alone.url + "/reset")
            assert (refused.status_code, refused.json()["code"]) == (503, "CAPACITY_REACHED")
            assert refused.headers["Retry-After"]

    def test_a_session_whose_caller_is_known_makes_room_for_nobody(self, alone: Running) -> None:
        with patient.Client(base_url=alone.url) as http:
            http.post("/reset")
            http.post("/step", json=step())
            with alone.socket() as socket:
                assert "CAPACITY_REACHED" in str(socket.recv(timeout=PATIENCE_S))
            assert http.get("/state").json()["step_count"] == 1


class TestFailures:
    @pytest.fixture
    def http(self, server: Running) -> Iterator[httpx.Client]:
        with patient.Client(base_url=server.url) as http:
            http.post("/reset")
            yield http
            assert http.get("/state").status_code == 200, "the session goes on"
            http.post("/close")

    def test_the_environments(self, http: httpx.Client) -> None:
        answer = http.post("/step", json=step("fail"))
        assert (answer.status_code, answer.json()) == (500, {"detail": "kaboom", "code": "EXECUTION_ERROR"})

    def test_a_validator_raising_value_error(self, http: httpx.Client) -> None:
        answer = http.post("/step", json=step("illegal"))
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["msg"] == "Value error, that order is not legal"

    @pytest.mark.parametrize("body", [b"nope", b"[1]", b'{"action": 5}', b"\xff", b'{"action":{"do":NaN}}'])
    def test_bodies_that_make_no_sense(self, http: httpx.Client, body: bytes) -> None:
        answer = http.post("/step", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)
        assert answer.json()["detail"]


class TestWhatAServerTells:
    def test_health_tells_the_truth(self, server: Running) -> None:
        assert patient.get(server.url + "/health").json() == {"status": "healthy"}
        with running(create_app(Unbuildable)) as broken:
            answer = patient.get(broken.url + "/health")
        assert answer.status_code == 503
        assert answer.json()["status"] == "unhealthy"
        assert "no such licence server" in answer.json()["detail"]

    def test_questions_do_not_build_environments(self) -> None:
        built: list[Obedient] = []

        def factory() -> Obedient:
            built.append(Obedient())
            return built[-1]

        app = create_app(
            factory, Obedient.step.__annotations__["action"], Obedient.step.__annotations__["return"]
        )
        with running(app) as server:
            for path in ("/health", "/metadata", "/schema", "/health", "/metadata"):
                patient.get(server.url + path).raise_for_status()
            with server.socket() as socket:
                socket.send('{"type":"reset"}')
                socket.recv(timeout=PATIENCE_S)
            assert len(built) == 1

    def test_schema_shows_the_fields_of_the_states_own_class(self, server: Running) -> None:
        schema = patient.get(server.url + "/schema").json()
        assert "events" in schema["state"]["properties"]
        assert schema["reset_observation"] == schema["observation"]

    def test_a_reset_observation_of_its_own_class_is_told(self) -> None:
        class First(EchoEnvironment):
            pass

        from envtorch import Observation

        class Welcome(Observation):
            rules: str = ""

        with running(create_app(First, reset_observation_cls=Welcome)) as server:
            schema = patient.get(server.url + "/schema").json()
        assert "rules" in schema["reset_observation"]["properties"]

    def test_docs_are_there(self, server: Running) -> None:
        assert patient.get(server.url + "/docs").status_code == 200
        paths = patient.get(server.url + "/openapi.json").json()["paths"]
        assert {"/reset", "/step", "/state", "/metadata", "/health", "/schema", "/mcp"} <= paths.keys()


class TestSessionsEnd:
    def test_after_their_lease_and_not_while_a_call_runs(self) -> None:
        config = ConcurrencyConfig(max_concurrent_envs=2, session_timeout=3.0)
        with running(create_app(Obedient, concurrency_config=config)) as server:
            Obedient.gate.clear()
            Obedient.entered.clear()
            with patient.Client(base_url=server.url) as http:
                http.post("/reset")
                slow = threading.Thread(target=http.post, args=["/step"], kwargs={"json": step("wait")})
                slow.start()
                assert Obedient.entered.wait(PATIENCE_S)
                assert not Obedient.gate.wait(4.0), "longer than the lease"
                assert server.sessions.active == 1, "a running call is not idleness"
                Obedient.gate.set()
                slow.join(PATIENCE_S)
                eventually(lambda: server.sessions.active == 0, "the lease ends")
                gone = http.get("/state")
                assert (gone.status_code, gone.json()["code"]) == (404, "SESSION_ERROR")

    def test_an_open_socket_is_not_idle(self) -> None:
        config = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.1)
        with running(create_app(Obedient, concurrency_config=config)) as server, server.socket() as socket:
            socket.send('{"type":"reset","data":{"episode_id":"kept"}}')
            socket.recv(timeout=PATIENCE_S)
            assert not threading.Event().wait(0.5), "longer than the lease"
            socket.send('{"type":"state"}')
            assert '"kept"' in str(socket.recv(timeout=PATIENCE_S))

    def test_with_the_server(self) -> None:
        Obedient.closed.clear()
        with running(create_app(Obedient, max_concurrent_envs=4)) as server:
            for _ in range(3):
                patient.post(server.url + "/reset")
        assert len(Obedient.closed) == 3


def test_routes_can_be_added_to_an_application_of_ones_own() -> None:
    app = FastAPI()
    HTTPEnvServer(EchoEnvironment, max_concurrent_envs=2).register_routes(app)

    @app.get("/mine")
    def mine() -> str:
        return "here"

    with running(app) as server:
        assert patient.get(server.url + "/mine").json() == "here"
        assert patient.post(server.url + "/reset").status_code == 200


def test_an_application_may_be_mounted_in_another() -> None:
    outer = FastAPI()
    outer.mount("/inner", create_app(EchoEnvironment))
    with running(outer) as server, server.socket("/inner/ws") as socket:
        socket.send('{"type":"reset"}')
        assert "ready" in str(socket.recv(timeout=PATIENCE_S))
