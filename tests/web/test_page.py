"""The page's routes, its lock and its options, over HTTP and without a browser."""

import subprocess
import sys
import time
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from envtorch import web
from envtorch.errors import ConfigurationError, MissingExtra
from envtorch.server import create_app
from envtorch.server.security.keys import Keys
from envtorch.server.security.login import GOOD_FOR_S, Login
from envtorch.web.manager import WebManager
from tests.web.environments import Listener, Walker

HTML = {"accept": "text/html"}


@pytest.fixture(autouse=True)
def page_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_WEB_INTERFACE", "true")


def walk(**options: Any) -> FastAPI:
    return create_app(Walker, env_name="walk_env", max_concurrent_envs=4, **options)


def test_a_server_without_a_page_loads_no_gradio() -> None:
    script = (
        "import sys; from envtorch.server import create_app;"
        "from envtorch.envs.echo_env.environment import EchoEnvironment;"
        "app = create_app(EchoEnvironment); assert 'gradio' not in sys.modules;"
        "assert not any(getattr(r, 'path', '').startswith('/web') for r in app.routes)"
    )
    subprocess.run([sys.executable, "-c", script], env={"PATH": ""}, check=True)


def test_openenvs_routes_play_in_a_session_of_their_own() -> None:
    with TestClient(walk()) as client:
        for place in ("/", "/web"):
            home = client.get(place, follow_redirects=False)
            assert (home.status_code, home.headers["location"]) == (307, "/web/")
        assert client.get("/web/").status_code == 200
        assert client.get("/web/metadata").json()["name"] == "walk_env"
        first = client.post("/web/reset", json={"start": 2, "unknown": 1})
        assert first.json() == {
            "observation": {"position": 2, "luck": 0.0, "metadata": {}},
            "reward": None,
            "done": False,
        }
        with client.websocket_connect("/ws/ui") as watching:
            assert watching.receive_json()["episode_state"]["is_reset"] is True
            stepped = client.post("/web/step", json={"action": {"direction": "right"}}).json()
            assert stepped["observation"]["position"] == 3
            told = watching.receive_json()
            assert told["type"] == "state_update"
            assert told["episode_state"]["step_count"] == 1
            assert told["episode_state"]["action_logs"][0]["action"] == {"direction": "right"}
        assert client.get("/web/state").json()["step_count"] == 1
        assert client.post("/web/step", json={"action": {"direction": "up"}}).status_code == 422


def test_production_mode_closes_the_pages_controls_too() -> None:
    with TestClient(walk(mode="production")) as client:
        assert client.post("/web/reset").status_code == 403
        assert client.post("/web/step", json={"action": {}}).status_code == 403
        assert client.get("/web/").status_code == 200


def test_the_lock_is_on_the_page_and_a_ticket_opens_the_page_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVTORCH_TOKEN", "a-long-enough-token")
    with TestClient(walk(), follow_redirects=False) as client:
        assert client.get("/web/").status_code == 401
        assert client.get("/web/", headers={"authorization": "Bearer a-long-enough-token"}).status_code == 200
        for place in ("/", "/web/", "/web/theme.css"):
            form = client.get(place, headers=HTML)
            assert form.status_code == 401
            assert 'type="password"' in form.text
        wrong = client.post("/web/login", data={"token": "wrong"}, headers=HTML)
        assert wrong.status_code == 401
        assert "does not take this token" in wrong.text
        right = client.post("/web/login", data={"token": "a-long-enough-token"})
        assert (right.status_code, right.headers["location"]) == (303, "/web/")
        cookie = right.headers["set-cookie"]
        for part in ("HttpOnly", "SameSite=strict", "Path=/web"):
            assert part in cookie
        assert "a-long-enough-token" not in cookie
        assert client.get("/web/").status_code == 200
        value = client.cookies["EnvTorch-Ticket"]
        for door in ("/reset", "/step", "/close"):
            refused = client.post(door, headers={"cookie": f"EnvTorch-Ticket={value}"})
            assert refused.status_code == 401, door
        assert client.get("/metrics", headers={"cookie": f"EnvTorch-Ticket={value}"}).status_code == 401


@pytest.mark.parametrize("cookie", ["", "EnvTorch-Ticket=", "EnvTorch-Ticket=99999999999.x", "=;=", "\x00=1"])
def test_a_ticket_that_nobody_gave_opens_nothing(cookie: str) -> None:
    login = Login(Keys("secret"))
    assert not login.admits("/web/", headers_with(cookie))


def test_a_ticket_ends_by_itself_and_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVTORCH_TOKEN", "first-token")
    with TestClient(walk(), follow_redirects=False) as client:
        client.post("/web/login", data={"token": "first-token"})
        headers = headers_with(f"EnvTorch-Ticket={client.cookies['EnvTorch-Ticket']}")
    assert Login(Keys("first-token")).admits("/web/", headers)
    assert not Login(Keys("second-token")).admits("/web/", headers)
    late = Login(Keys("first-token"), clock=lambda: time.time() + GOOD_FOR_S + 1)
    assert not late.admits("/web/", headers)


def headers_with(cookie: str) -> Headers:
    return Headers(raw=[(b"cookie", cookie.encode())])


def test_a_builder_is_given_what_openenv_gives() -> None:
    given: list[Any] = []

    def builder(*args: Any) -> gr.Blocks:
        given.extend(args)
        return gr.Blocks()

    create_app(Listener, env_name="listener", gradio_builder=builder, title_override="A page of my own")
    manager, fields, metadata, is_chat, title, quick_start = given
    assert isinstance(manager, WebManager)
    kinds = {field["name"]: field["type"] for field in fields}
    assert (kinds["size"], kinds["urgent"], kinds["count"], kinds["message"]) == (
        "select", "checkbox", "number", "textarea",
    )  # fmt: skip
    assert set(fields[0]) >= {"name", "type", "required", "description", "default_value", "choices"}
    assert (metadata.name, is_chat, title) == ("listener", False, "A page of my own")
    assert "env.reset()" in quick_start


def test_a_builder_that_returns_something_else_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match=r"gr\.Blocks"):
        walk(gradio_builder=lambda *_: "no page")


def test_a_missing_gradio_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[web\]"):
        web.mount(FastAPI(), None, None)


def test_the_page_offers_no_api_and_does_not_call_home() -> None:
    with TestClient(walk()) as client:
        config = client.get("/web/config").json()
        assert config["title"] == "walk_env"
        assert config["analytics_enabled"] is False
        assert not any(fn["api_visibility"] == "public" for fn in config["dependencies"])


def test_callers_who_come_from_another_loop_each_time_keep_their_episode() -> None:
    client = TestClient(walk())  # with no `with` around it, every request has an event loop of its own
    client.post("/web/reset", json={"start": 2})
    assert (
        client.post("/web/step", json={"action": {"direction": "right"}}).json()["observation"]["position"]
        == 3
    )
    assert client.get("/web/state").json()["step_count"] == 1
