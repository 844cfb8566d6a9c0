"""OpenEnv 0.10.0's recorded exchanges, replayed against our server and compared as data.

`DIFFERENCES` is the whole list of what may differ, each with its reason.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from envtorch import Action, Environment, Observation, State
from envtorch.server import create_app
from tests import patient
from tests.data import probe_env
from tests.support import PATIENCE_S, Running, running

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data/openenv_transcripts.json").read_text()
)

DIFFERENCES = {
    "pydantic's error links": "they carry the version of pydantic that is installed",
    "errors have no `input`": "what was refused may hold a secret, and answers are logged",
    "POST /step answers count on": "our HTTP is stateful: the second step of an episode is its second",
    "GET /state tells the episode": "our HTTP is stateful, and tells every field the state has",
    "GET /schema tells the state's own class": "OpenEnv drops a subclass's fields; our description is ours",
}


def build(**options: Any) -> Any:
    environment, action, observation = probe_env.build(Environment, Action, Observation, State)
    return create_app(environment, action, observation, **options)


@pytest.fixture(scope="module")
def simulation() -> Iterator[Running]:
    with running(build(max_concurrent_envs=2, mode="simulation")) as server:
        yield server


@pytest.fixture(scope="module")
def alone() -> Iterator[Running]:
    """Room for one session: what a plain HTTP caller, who keeps no cookie, expects."""
    with running(build(sessions=1, mode="simulation")) as server:
        yield server


@pytest.fixture(scope="module")
def production() -> Iterator[Running]:
    with running(build(mode="production")) as server:
        yield server


def without_links(value: Any) -> Any:
    """The value, less the version in pydantic's error links."""
    return json.loads(re.sub(r"errors\.pydantic\.dev/[\d.]+/", "errors.pydantic.dev/N/", json.dumps(value)))


def without_inputs(value: Any) -> Any:
    """What was recorded, less the values in its errors."""
    if isinstance(value, list):
        return [without_inputs(one) for one in value]
    if isinstance(value, str):
        return re.sub(r", input_value=.*?, input_type=\w+\]", "]", value)
    if not isinstance(value, dict):
        return value
    is_error = {"loc", "msg", "input"} <= value.keys()
    return {name: without_inputs(one) for name, one in value.items() if not (is_error and name == "input")}


@pytest.mark.parametrize("conversation", RECORDED["ws"], ids=lambda conversation: conversation["name"])
def test_websocket(conversation: dict[str, Any], simulation: Running) -> None:
    with simulation.socket(conversation["path"]) as socket:
        for exchange in conversation["exchanges"]:
            socket.send(exchange["send"])
            if exchange.get("closed"):
                with pytest.raises(ConnectionClosed):
                    socket.recv(timeout=PATIENCE_S)
                assert socket.close_code == conversation["close_code"]
            else:
                received = json.loads(socket.recv(timeout=PATIENCE_S))
                assert without_links(received) == without_links(without_inputs(exchange["receive"])), (
                    exchange["send"]
                )


def expected_on_our_server(exchanges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was recorded, with the differences of `DIFFERENCES` written in."""
    steps = 0
    expected = []
    for recorded in exchanges:
        exchange = json.loads(json.dumps(recorded))
        path, status = exchange["path"], exchange["status"]
        if path == "/step" and status == 200:
            steps += 1
            for metadata in (
                exchange["response"]["metadata"],
                exchange["response"]["observation"]["metadata"],
            ):
                metadata["step"] = steps
        if path == "/state" and status == 200:
            exchange["response"] = {
                "episode_id": "e",
                "step_count": steps,
                "last": "Hello",
                "reset_kwargs": {"seed": 42},
            }
        expected.append(exchange)
    return expected


def play(server: Running, exchange: dict[str, Any]) -> httpx.Response:
    body = {} if exchange["body"] is None else {"json": exchange["body"]}
    return patient.request(exchange["method"], server.url + exchange["path"], **body)


@pytest.mark.parametrize("mode", ["simulation", "production"])
def test_http(mode: str, alone: Running, production: Running) -> None:
    server, recorded = (
        (alone, RECORDED["http"]) if mode == "simulation" else (production, RECORDED["http_production"])
    )
    for exchange in expected_on_our_server(recorded):
        response = play(server, exchange)
        where = f"{exchange['method']} {exchange['path']} {exchange['body']}"
        assert response.status_code == exchange["status"], where
        answered = response.json()
        if exchange["path"] == "/schema":
            state, recorded_state = answered.pop("state"), exchange["response"].pop("state")
            assert state["properties"].items() >= recorded_state["properties"].items()
            assert state["properties"].keys() - recorded_state["properties"].keys() == {
                "last",
                "reset_kwargs",
            }
        assert without_links(answered) == without_links(without_inputs(exchange["response"])), where


def test_capacity(simulation: Running) -> None:
    recorded = RECORDED["capacity"]
    with simulation.socket(), simulation.socket(), simulation.socket() as third:
        assert json.loads(third.recv(timeout=PATIENCE_S)) == recorded["third_connection_receives"]
        with pytest.raises(ConnectionClosed):
            third.recv(timeout=PATIENCE_S)
        assert third.close_code == recorded["close_code"]
