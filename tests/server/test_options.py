"""One value says how a server is to be; room for many sessions is the default where the class allows it."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

import envtorch
from envtorch import Action, Environment, Observation, ServerOptions, State, create_app
from envtorch.errors import ConfigurationError
from envtorch.server.options import DEFAULT_SESSIONS
from envtorch.types import ConcurrencyConfig
from tests.support import running


class Plain(Environment[Action, Observation, State]):
    """Says nothing of how many of it may live in one process, as a newcomer's does."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self) -> Observation:
        self._state = State()
        return Observation()

    def step(self, action: Action) -> Observation:
        self._state.step_count += 1
        return Observation()

    @property
    def state(self) -> State:
        return self._state


class Promising(Plain):
    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = True


class Single(Plain):
    SUPPORTS_CONCURRENT_SESSIONS: ClassVar[bool] = False


def room(env: Any, **options: Any) -> int:
    capacity: int = create_app(env, **options).state.env_server.max_concurrent_envs
    return capacity


class TestRoom:
    def test_a_class_has_room_for_many_unless_it_says_that_it_has_not(self) -> None:
        assert room(Plain) == room(Promising) == DEFAULT_SESSIONS
        assert room(Single) == 1

    def test_an_instance_or_a_function_has_room_for_one(self) -> None:
        assert room(Plain()) == 1

    def test_what_is_said_wins(self) -> None:
        assert room(Plain, sessions=3) == 3
        assert room(Plain, options=ServerOptions(sessions=4)) == 4
        assert room(Plain, options=ServerOptions(sessions=4), sessions=5) == 5
        assert room(Plain, concurrency_config=ConcurrencyConfig(max_concurrent_envs=6)) == 6

    def test_many_of_a_class_that_says_one_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="Single does not say"):
            room(Single, sessions=2)

    def test_openenvs_alias_keeps_openenvs_rule(self) -> None:
        from envtorch.compat.exceptions import ConcurrencyConfigurationError
        from envtorch.compat.http_server import create_app as openenv_app

        assert openenv_app(Plain, Action, Observation).state.env_server.max_concurrent_envs == 1
        with pytest.raises(ConcurrencyConfigurationError):
            openenv_app(Plain, Action, Observation, max_concurrent_envs=2)


class TestOptions:
    def test_they_are_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            ServerOptions().sessions = 2  # type: ignore[misc]

    def test_a_misspelt_one_is_an_error_that_lists_those_there_are(self) -> None:
        with pytest.raises(ConfigurationError, match=r"no such option: session; there are .*sessions"):
            create_app(Plain, session=2)

    def test_openenvs_spellings_are_understood(self) -> None:
        server = create_app(Plain, max_concurrent_envs=2, env_name="mine").state.env_server
        assert (server.max_concurrent_envs, server.spec.name) == (2, "mine")
        with pytest.raises(ConfigurationError, match="given twice"):
            create_app(Plain, max_concurrent_envs=2, sessions=2)

    def test_a_size_limit_is_an_option_too(self) -> None:
        with running(create_app(Promising, max_message_bytes=1000)) as server:
            answer = httpx.post(server.url + "/step", json={"action": {"x": "y" * 1000}})
        assert answer.status_code == 413

    def test_a_recording_and_a_mode(self, tmp_path: Path) -> None:
        server = create_app(Plain, record=tmp_path, mode="production").state.env_server
        assert server.sessions.recorder is not None
        assert server.mode == "production"


def test_callers_who_name_no_session_keep_their_episode_while_it_is_clear_whose_it_is() -> None:
    with running(create_app(Plain)) as server:
        httpx.post(server.url + "/reset")
        for _ in range(2):
            assert httpx.post(server.url + "/step", json={"action": {}}).status_code == 200
        assert httpx.get(server.url + "/state").json()["step_count"] == 2
        with httpx.Client(base_url=server.url) as named:
            named.post("/reset")
            named.post("/step", json={"action": {}})
            assert named.get("/state").json()["step_count"] == 1
        assert httpx.get(server.url + "/state").json()["step_count"] == 2


def test_two_callers_who_reset_at_once_never_share_an_episode() -> None:
    with (
        running(create_app(Plain)) as server,
        httpx.Client(base_url=server.url) as one,
        httpx.Client(base_url=server.url) as two,
    ):
        one.post("/reset")
        two.post("/reset")
        one.post("/step", json={"action": {}})
        assert [http.get("/state").json()["step_count"] for http in (one, two)] == [1, 0]
        assert httpx.post(server.url + "/step", json={"action": {}}).status_code == 409


def test_the_sandbox_is_a_public_name() -> None:
    assert envtorch.Sandbox.__module__.startswith("envtorch.sandbox")
