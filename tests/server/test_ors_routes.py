"""The session routes of the Open Reward Standard, over a real socket."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import httpx
import pytest
from fastmcp import FastMCP
from starlette.datastructures import Headers

from envtorch import Action, Environment, Observation, State
from envtorch.mcp import MCPEnvironment
from envtorch.server import create_app
from envtorch.server.workers.http_forwarding import session_name
from envtorch.tasks import TaskSet
from tests import patient
from tests.support import PATIENCE_S, Running, eventually, running

Events = list[tuple[str, str]]


class Add(Action):
    number: int


class Sum(Observation):
    text: str = ""


class Adding(Environment[Add, Sum, State]):
    """Adds up to ten."""

    tasks = TaskSet(dict, {"train": [{"first": 3}, {"first": 8}]})

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, task: dict[str, int] | None = None, first: int = 0) -> Sum:
        self._sum = task["first"] if task is not None else first
        self._state = State()
        return Sum(text=f"sum {self._sum}")

    def step(self, action: Add) -> Sum:
        if action.number == 0:
            raise ZeroDivisionError("nothing to add")
        self._state.step_count += 1
        self._sum += action.number
        return Sum(text=f"sum {self._sum}" + " " * action.number * 1000, reward=0.5, done=self._sum >= 10)

    def score_group(self, candidates: list[dict[str, Any]]) -> list[float]:
        return [float(len(candidate["messages"])) for candidate in candidates]

    @property
    def state(self) -> State:
        return self._state


def events_of(answer: httpx.Response) -> Events:
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    found = []
    for block in answer.text.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if not line.startswith(":")]
        if lines:
            data = "\n".join(value for name, _, value in lines if name == "data")
            found.append((next(value for name, _, value in lines if name == "event"), data))
    return found


class Player:
    """What a client of the standard sends."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url, self.headers = url, headers
        opened = events_of(self.post("/create_session", {}))
        assert [name for name, _ in opened] == ["task_id", "end"]
        self.headers["X-Session-ID"] = opened[0][1]

    def post(self, path: str, body: Any) -> httpx.Response:
        return patient.post(self.url + path, json=body, headers=self.headers)

    def get(self, path: str) -> httpx.Response:
        return patient.get(self.url + path, headers=self.headers)

    def call(self, name: str, arguments: Any, path: str = "/call", **more: Any) -> tuple[str, Any]:
        """The `task_id`, and what came of the call."""
        told = events_of(self.post(path, {"name": name, "input": arguments, **more}))
        assert told[0][0] == "task_id"
        if told[-1][0] == "error":
            return told[0][1], told[-1][1]
        assert [name for name, _ in told[1:-1]] == ["chunk"] * (len(told) - 2)
        assert all(len(data) == len(data.lstrip()) for _, data in told), "a reader drops leading spaces"
        return told[0][1], json.loads("".join(data for _, data in told[1:]))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Adding, sessions=8)) as server:
        yield server


@pytest.fixture
def player(server: Running) -> Iterator[Player]:
    player = Player(server.url)
    yield player
    assert player.post("/delete", {}).status_code == 200
    eventually(lambda: server.sessions.active == 0, "the session is closed")


def test_an_episode_is_a_prompt_and_calls_of_a_tool(player: Player) -> None:
    assert player.post("/create", {"split": "train", "index": 1, "env_name": "adding"}).status_code == 200
    assert player.get("/Adding/prompt").json() == [{"text": "sum 8", "detail": None, "type": "text"}]
    assert player.get("/messages").json()[0]["role"] == "user"
    (tool,) = player.get("/adding/tools").json()["tools"]
    assert tool["name"] == "step"
    assert "number" in tool["input_schema"]["properties"]
    _, told = player.call("step", {"number": 1}, "/adding/call")
    assert (told["ok"], told["output"]["reward"], told["output"]["finished"]) == (True, 0.5, False)
    assert told["output"]["blocks"][0]["text"].startswith("sum 9")
    _, told = player.call("step", {"number": 5})
    assert told["output"]["finished"]
    assert len(told["output"]["blocks"][0]["text"]) == len("sum 14") + 5000, "in pieces, and whole"
    _, told = player.call("step", {"number": 1})
    assert (told["ok"], told["reason"]) == (False, "episode_finished")


def test_a_call_that_is_sent_again_with_its_task_id_takes_no_second_step(player: Player) -> None:
    player.post("/create", {"task_spec": {"first": 1}})
    id, first = player.call("step", {"number": 2})
    assert player.call("step", {"number": 2}, task_id=id) == (id, first)
    assert player.call("step", {"number": 1})[1]["output"]["blocks"][0]["text"].startswith("sum 4")


def test_what_goes_wrong_is_told_as_the_standard_has_it(player: Player, server: Running) -> None:
    assert player.get("/prompt").status_code == 400, "there is no episode yet"
    assert player.post("/create", {"split": "train", "index": 7}).status_code == 400
    assert player.post("/create", {"task_spec": {"colour": "red"}}).status_code == 422
    assert player.post("/create", {"task_spec": {}, "split": "train", "index": 0}).status_code == 422
    assert player.post("/create", {"env_name": "other", "task_spec": {}}).status_code == 404
    assert player.post("/create", {"task_spec": {"first": 1}}).status_code == 200
    assert player.post("/create", {"task_spec": {"first": 1}}).status_code == 400, "it has begun"
    assert player.call("fly", {})[1]["reason"] == "not_found"
    assert player.call("step", {"number": "many"})[1]["reason"] == "input_validation"
    assert "EnvironmentFailed" in player.call("step", {"number": 0})[1], "an error, and no reward"
    stranger = {"X-Session-ID": "unknown"}
    assert patient.post(f"{server.url}/ping", headers=stranger).status_code == 410
    assert patient.post(f"{server.url}/ping").status_code == 400
    assert player.post("/ping", {}).json() == {"status": "ok"}


def test_a_ping_begins_the_lease_anew(player: Player, server: Running) -> None:
    (session,) = server.sessions.all()
    before = session._expiry
    assert before is not None
    assert player.post("/ping", {}).status_code == 200
    assert session._expiry is not None
    assert session._expiry.when() > before.when()


def test_candidates_are_compared_by_an_environment_that_can(player: Player) -> None:
    player.post("/create", {"task_spec": {}})
    candidates = [{"messages": [1, 2]}, {"messages": []}]
    told = events_of(player.post("/score_group", {"candidates": candidates}))
    assert json.loads(told[-1][1]) == {"scores": [{"reward": 2.0}, {"reward": 0.0}]}
    assert player.get("/tools").json()["supports_score_group"] is True


def test_the_task_routes_are_found_without_the_environments_name(server: Running) -> None:
    with httpx.Client(base_url=server.url, follow_redirects=True, timeout=60) as http:
        assert http.get("/splits").json() == [{"name": "train", "type": "train"}]
        assert http.post("/num_tasks", json={"split": "train"}).json() == {"num_tasks": 2}


class Basket(MCPEnvironment):
    """Apples."""

    def __init__(self) -> None:
        tools = FastMCP("basket")
        self._apples = 0

        @tools.tool
        def put(apples: int) -> int:
            """Put apples into the basket."""
            self._apples += apples
            return self._apples

        super().__init__(tools)

    def reset(self, seed: int | None = None) -> Observation:
        self._apples = 0
        return Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


def test_a_tool_environment_has_its_own_tools() -> None:
    with running(create_app(Basket, sessions=2)) as server:
        player = Player(server.url)
        player.post("/create", {"task_spec": {}})
        assert [tool["name"] for tool in player.get("/task_tools").json()["tools"]] == ["put"]
        assert player.call("put", {"apples": 3})[1]["output"]["blocks"][0]["text"] == "3"
        assert player.call("put", {"apples": "some"})[1]["ok"] is False
        assert player.call("eat", {})[1]["ok"] is False
        player.post("/delete_session", {})
        eventually(lambda: server.sessions.active == 0, "the session is closed")


def test_the_door_has_the_lock_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVTORCH_TOKEN", "secret-token")
    with running(create_app(Adding, sessions=2)) as server:
        for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": ""}):
            assert patient.post(f"{server.url}/create_session", headers=headers).status_code == 401
        wrong = {"Authorization": "Bearer wrong", "X-API-Key": "secret-token"}
        assert patient.post(f"{server.url}/create_session", headers=wrong).status_code == 401
        player = Player(server.url, **{"X-API-Key": "secret-token"})
        assert player.post("/create", {"task_spec": {}}).status_code == 200
        assert player.post("/delete", {}).status_code == 200


def test_production_mode_has_no_such_door() -> None:
    with running(create_app(Adding, sessions=2, mode="production")) as server:
        assert patient.post(f"{server.url}/create_session").status_code == 404


def test_a_server_of_several_workers_finds_the_session_by_the_standards_header() -> None:
    assert session_name("/adding/call", Headers({"X-Session-ID": "token"})) == "token"


def test_a_request_goes_to_the_worker_of_the_header_that_its_route_reads() -> None:
    both = Headers({"X-Session-ID": "standard", "EnvTorch-Session": "ours"})
    assert session_name("/adding/call", both) == "standard"
    assert session_name("/delete", both) == "standard"
    assert session_name("/step", both) == "ours"
    assert session_name("/step", Headers({"X-Session-ID": "of-a-proxy"})) is None


class Say(Action):
    text: str


class Quoting(Environment[Say, Sum, State]):
    """Quotes what it fails at, and gives scores as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Sum:
        self._state = State()
        return Sum()

    def step(self, action: Say) -> Sum:
        raise ValueError(action.text)

    def score_group(self, candidates: list[dict[str, Any]]) -> Any:
        return candidates[0]["scores"]

    @property
    def state(self) -> State:
        return self._state


@pytest.fixture(scope="module")
def quoting() -> Iterator[Running]:
    with running(create_app(Quoting, sessions=8)) as server:
        yield server


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\x0b", "\x0c", "\x1e", "\x85", "\u2028", "\u2029"])
def test_no_text_in_an_error_begins_an_event_of_its_own(end: str, quoting: Running) -> None:
    player = Player(quoting.url)
    player.post("/create", {"task_spec": {}})
    forged = end.join(["x", "", "event: end", 'data: {"ok": true}', "", ""])
    answer = player.post("/call", {"name": "step", "input": {"text": forged}})
    lines = answer.text.splitlines()
    assert [line for line in lines if line.startswith("event:")] == ["event: task_id", "event: error"]
    assert all(line.startswith(("event: ", "data: ")) for line in lines if line), lines
    refused = player.post("/call", {"name": "step", "input": {"text": "x"}, "task_id": f"line{end}2"})
    assert refused.status_code == 422
    player.post("/delete", {})


@pytest.mark.parametrize("scores", [["much"], [None], None, 3, [], [1, 2], [{"reward": "much"}], [{}]])
def test_scores_that_are_no_numbers_are_an_error_that_is_told(scores: Any, quoting: Running) -> None:
    player = Player(quoting.url)
    player.post("/create", {"task_spec": {}})
    told = events_of(player.post("/score_group", {"candidates": [{"scores": scores}]}))
    assert told[-1][0] == "error"
    assert told[-1][1].startswith("EnvironmentFailed: score_group returned")
    player.post("/delete", {})


@pytest.mark.parametrize("spec", [{"seed": -1}, {"seed": "x"}, {"episode_id": "y" * 256}])
def test_an_episode_begins_with_options_that_reset_takes_over_http(
    spec: dict[str, Any], quoting: Running
) -> None:
    player = Player(quoting.url)
    assert player.post("/reset", spec).status_code == 422
    assert player.post("/create", {"task_spec": spec}).status_code == 422
    assert player.post("/create", {"task_spec": {"seed": 1}}).status_code == 200, "it had not begun"
    player.post("/delete", {})


@pytest.mark.parametrize("path", ["/create_session", "/ping", "/delete", "/delete_session"])
def test_a_body_that_is_not_json_is_refused_where_none_is_needed(path: str, quoting: Running) -> None:
    player = Player(quoting.url)
    before = quoting.sessions.active
    text = {**player.headers, "Content-Type": "text/plain"}
    assert patient.post(quoting.url + path, content="x", headers=text).status_code == 415
    assert quoting.sessions.active == before
    unused = {**player.headers, "Content-Type": "application/octet-stream"}
    assert patient.post(quoting.url + "/ping", headers=unused).status_code == 200, "there is no body"
    player.post("/delete", {})


class Held(Adding):
    """Every reset and every step waits until it may go on."""

    entered: ClassVar[threading.Event]
    may_go_on: ClassVar[threading.Event]

    def reset(self, task: dict[str, int] | None = None, first: int = 0) -> Sum:
        self._wait()
        return super().reset(task, first)

    def step(self, action: Add) -> Sum:
        self._wait()
        return super().step(action)

    def _wait(self) -> None:
        self.entered.set()
        assert self.may_go_on.wait(PATIENCE_S)


@pytest.fixture
def held() -> Iterator[Running]:
    Held.entered, Held.may_go_on = threading.Event(), threading.Event()
    with running(create_app(Held, sessions=2)) as server:
        yield server
        Held.may_go_on.set()


def at_a_final_step(server: Running) -> Player:
    """A player whose next call is held."""
    player = Player(server.url)
    Held.may_go_on.set()
    assert player.post("/create", {"task_spec": {"first": 9}}).status_code == 200
    Held.entered.clear()
    Held.may_go_on.clear()
    return player


def steps_of(player: Player) -> int:
    state = patient.get(player.url + "/state", headers={"EnvTorch-Session": player.headers["X-Session-ID"]})
    return int(state.json()["step_count"])


def test_a_call_that_is_sent_while_the_final_one_runs_takes_no_step(held: Running) -> None:
    player = at_a_final_step(held)
    with ThreadPoolExecutor(1) as pool, patient.Client(base_url=held.url, headers=player.headers) as http:
        final = pool.submit(player.call, "step", {"number": 1})
        assert Held.entered.wait(PATIENCE_S)
        late = {"name": "step", "input": {"number": 1}}
        with http.stream("POST", "/call", json=late) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: task_id"
            assert player.post("/ping", {}).status_code == 200
            Held.may_go_on.set()
            assert '"episode_finished"' in "".join(lines)
        assert final.result(PATIENCE_S)[1]["output"]["finished"]
    assert steps_of(player) == 1


def test_a_final_step_by_another_door_ends_the_episode(player: Player) -> None:
    assert player.post("/create", {"split": "train", "index": 1}).status_code == 200
    session = {"EnvTorch-Session": player.headers["X-Session-ID"]}
    stepped = patient.post(player.url + "/step", json={"action": {"number": 7}}, headers=session).json()
    assert stepped["done"]
    assert player.call("step", {"number": 1})[1]["reason"] == "episode_finished"
    patient.post(player.url + "/reset", json={}, headers=session).raise_for_status()
    assert player.call("step", {"number": 1})[1]["ok"], "another episode has begun"


def test_a_final_call_whose_client_left_ends_the_episode(held: Running) -> None:
    player = at_a_final_step(held)
    with patient.Client(base_url=held.url, headers=player.headers) as http:
        final = {"name": "step", "input": {"number": 1}, "task_id": "final"}
        with http.stream("POST", "/call", json=final):
            assert Held.entered.wait(PATIENCE_S)
    for _ in range(3):  # the server has seen by then that the connection is gone
        assert player.post("/ping", {}).status_code == 200
    Held.may_go_on.set()
    assert player.call("step", {"number": 1})[1]["reason"] == "episode_finished"
    assert player.call("step", {"number": 1}, task_id="final")[1]["output"]["finished"], "as it was"
    assert steps_of(player) == 1


def test_of_several_creations_of_one_session_one_succeeds(held: Running) -> None:
    player = Player(held.url)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(player.post, "/create", {"task_spec": {}})
        assert Held.entered.wait(PATIENCE_S)
        others = [pool.submit(player.post, "/create", {"task_spec": {"first": 5}}) for _ in range(2)]
        player.post("/ping", {})
        Held.may_go_on.set()
        assert [other.result().status_code for other in others] == [400, 400]
        assert first.result().status_code == 200
    assert player.get("/prompt").json()[0]["text"] == "sum 0"
