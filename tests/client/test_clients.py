"""One suite for every way to an environment: the same calls give the same results."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol, assert_type, get_args

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Response

from envtorch import (
    AsyncEnvClient,
    AsyncVectorEnv,
    EnvClient,
    GenericEnvClient,
    HTTPEnvClient,
    StepResult,
    VectorEnv,
)
from envtorch.client.aio.client import AsyncFactory
from envtorch.client.client_options import ClientOptions, Wire
from envtorch.envs.echo_env import EchoAction, EchoEnv, EchoObservation, EchoState
from envtorch.errors import (
    CapacityReached,
    ConfigurationError,
    ConnectFailed,
    EnvironmentFailed,
    EnvTorchError,
    InvalidAction,
    ProtocolError,
    SessionElsewhere,
    SessionLost,
    TimedOut,
)
from envtorch.server import create_app
from tests.faults.counting import Add, Counting, CountingEnv
from tests.server.environments import AsyncObedient, Count, Obedient, Order, Report
from tests.support import Running, running


class ObedientEnv(EnvClient[Order, Report, Count], environment="tests.server.environments:Obedient"): ...


class ObedientHttp(HTTPEnvClient[Order, Report, Count]): ...


class Client(Protocol):
    """What all the clients have in common."""

    def reset(self, **options: Any) -> StepResult[Report]: ...
    def step(self, action: Order) -> StepResult[Report]: ...
    def state(self) -> Count: ...
    def close(self) -> None: ...


class Awaited:
    """An async client seen as a blocking one, for the length of a test."""

    def __init__(self, client: AsyncEnvClient[Order, Report, Count]) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def reset(self, **options: Any) -> StepResult[Report]:
        return self._runner.run(self._client.reset(**options))

    def step(self, action: Order) -> StepResult[Report]:
        return self._runner.run(self._client.step(action))

    def state(self) -> Count:
        return self._runner.run(self._client.state())

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(create_app(Obedient, max_concurrent_envs=8)) as running_server:
        yield running_server


WAYS: dict[str, Callable[[str], Client]] = {
    "blocking": lambda url: ObedientEnv(url),
    "blocking, msgpack": lambda url: ObedientEnv(url, wire="msgpack"),
    "blocking, openenv": lambda url: ObedientEnv(url, wire="openenv"),
    "async": lambda url: Awaited(ObedientEnv.aio(url)),
    "async, msgpack": lambda url: Awaited(ObedientEnv.aio(url, wire="msgpack")),
    "async, openenv": lambda url: Awaited(ObedientEnv.aio(url, wire="openenv")),
    "http": lambda url: ObedientHttp(url),
    "local": lambda url: ObedientEnv.local(),
    "async local": lambda url: Awaited(ObedientEnv.aio.local(Obedient)),
}


@pytest.fixture(params=WAYS)
def env(request: pytest.FixtureRequest, server: Running) -> Iterator[Client]:
    client = WAYS[request.param](server.url)
    yield client
    client.close()


class TestEveryWay:
    def test_an_episode(self, env: Client) -> None:
        first = env.reset(seed=3, episode_id="e")
        assert first.observation.said == "seed 3"
        result = env.step(Order(do="hello"))
        assert (result.observation.said, result.reward, result.observation.reward) == ("hello", 1.0, 1.0)
        assert (result.done, result.terminated, result.truncated) == (False, False, False)
        state = env.state()
        assert isinstance(state, Count)
        assert (state.episode_id, state.step_count) == ("e", 1)

    def test_what_the_environment_raises(self, env: Client) -> None:
        env.reset()
        with pytest.raises(EnvironmentFailed, match="kaboom"):
            env.step(Order(do="fail"))
        assert env.state().step_count == 1

    def test_what_a_validator_refuses(self, env: Client) -> None:
        env.reset()
        with pytest.raises(InvalidAction, match="that order is not legal"):
            env.step(Order.model_construct(do="illegal", metadata={}))
        assert env.step(Order(do="on")).observation.said == "on"

    def test_arrays(self, env: Client) -> None:
        env.reset()
        data = env.step(Order(do="array")).observation.data
        assert np.array_equal(data, np.eye(2))


def public(cls: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}


def test_the_twins_have_the_same_methods() -> None:
    translation = {"encode_action", "encode_actions", "parse_observations", "parse_result", "parse_state"}
    translation |= {"encode_columns", "parse_fields", "spec", "environment"}
    constructors = {"local", "from_docker_image", "from_hub"}
    # A blocking call is the only thing its thread does: there is nobody to take it back.
    assert public(EnvClient) - translation - constructors - {"aio", "vector"} == public(AsyncEnvClient) - {
        "cancel"
    }
    assert public(AsyncFactory) == constructors | {"vector"}
    assert public(AsyncVectorEnv) == public(VectorEnv) | {
        "connect"
    }  # a blocking vector connects when it is made


class TestTypes:
    def test_survive_the_generic(self) -> None:
        def blocking(env: EchoEnv) -> None:
            assert_type(env.step(EchoAction(message="x")), StepResult[EchoObservation])
            assert_type(env.state(), EchoState)

        async def awaited() -> None:
            env = EchoEnv.aio("http://nowhere")
            assert_type(env, AsyncEnvClient[EchoAction, EchoObservation, EchoState])
            assert_type(await env.reset(), StepResult[EchoObservation])

        assert callable(blocking)
        assert callable(awaited)

    def test_dictionaries_will_do(self, server: Running) -> None:
        with GenericEnvClient(server.url) as env:
            env.reset(episode_id="e")
            assert env.step({"do": "x"}).observation["said"] == "x"
            assert env.state()["episode_id"] == "e"


class TestHooks:
    def test_a_subclass_has_the_last_word(self, server: Running) -> None:
        class Shouting(EnvClient[str, str, int]):
            def _step_payload(self, action: str) -> dict[str, Any]:
                return {"do": action.upper()}

            def _parse_result(self, payload: dict[str, Any]) -> StepResult[str]:
                return StepResult(payload["observation"]["said"], reward=payload["reward"])

            def _parse_state(self, payload: dict[str, Any]) -> int:
                return int(payload["step_count"])

        with Shouting(server.url) as env:
            env.reset()
            assert env.step("hello").observation == "HELLO"
            assert env.state() == 1

        async def awaited() -> str:
            async with Shouting.aio(server.url) as env:
                return (await env.step("twin")).observation

        assert asyncio.run(awaited()) == "TWIN"


extended = pytest.mark.parametrize("wire", [wire for wire in get_args(Wire) if wire != "openenv"])


class TestTimeouts:
    def test_a_late_reply_is_not_taken_for_the_next_ones(self, server: Running) -> None:
        Obedient.gate.clear()
        with ObedientEnv(server.url, message_timeout_s=0.3, wire="openenv") as env:
            env.reset()
            with pytest.raises(TimedOut, match=r"step was not answered within 0\.3 s"):
                env.step(Order(do="wait"))
            Obedient.gate.set()
            assert env.step(Order(do="next")).observation.said == "next"
            assert env.state().step_count == 2

    def test_nor_by_the_async_client(self, server: Running) -> None:
        async def play() -> tuple[str, int]:
            Obedient.gate.clear()
            async with ObedientEnv.aio(server.url, message_timeout_s=0.3, wire="openenv") as env:
                await env.reset()
                with pytest.raises(TimedOut):
                    await env.step(Order(do="wait"))
                Obedient.gate.set()
                said = (await env.step(Order(do="next"))).observation.said
                return said, (await env.state()).step_count

        assert asyncio.run(play()) == ("next", 2)

    @extended
    def test_on_our_wire_a_late_step_is_cancelled_and_takes_a_session_that_cannot_stop_it(
        self, wire: Wire, server: Running
    ) -> None:
        Obedient.gate.clear()
        with ObedientEnv(server.url, message_timeout_s=0.3, wire=wire) as env:
            env.reset()
            with pytest.raises(TimedOut, match=r"step was not answered within 0\.3 s"):
                env.step(Order(do="wait"))
            with pytest.raises(SessionLost, match="could not be stopped"):
                env.step(Order(do="next"))
            Obedient.gate.set()
            assert env.reset(seed=3).observation.said == "seed 3"

    @extended
    def test_and_goes_on_with_one_that_can(self, wire: Wire) -> None:
        with (
            running(create_app(Counting)) as server,
            CountingEnv(server.url, message_timeout_s=0.3, wire=wire) as env,
        ):
            env.reset()
            with pytest.raises(TimedOut):
                env.step(Add(n=1, wait_s=3600))
            assert env.step(Add(n=2)).observation.total == 2
            assert env.state().step_count == 1

    def test_over_http(self, server: Running) -> None:
        Obedient.gate.clear()
        with ObedientHttp(server.url, request_timeout_s=0.3) as env:
            env.reset()
            with pytest.raises(TimedOut):
                env.step(Order(do="wait"))
            Obedient.gate.set()
            assert env.state().step_count == 1


class TestLosses:
    def test_no_server(self) -> None:
        for way in ("blocking", "async", "http"):
            client = WAYS[way]("http://127.0.0.1:9")
            with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:9"):
                client.reset()
            client.close()

    @pytest.mark.parametrize("way", ["blocking", "async"])
    def test_no_environment_server_is_said_once_and_is_final(self, way: str, server: Running) -> None:
        client = WAYS[way](server.url + "/nothing/here")
        with pytest.raises(ConnectFailed, match="403") as caught:
            client.reset()
        client.close()
        assert str(caught.value).count("Failed to connect") == 1
        assert caught.value.details["is_final"]

    @pytest.mark.parametrize("url", ["ftp://somewhere", "http://somewhere:web"])
    def test_no_address(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="not the address of a server"):
            ObedientEnv(url).reset()

    def test_no_room(self) -> None:
        with running(create_app(Obedient, sessions=1)) as full, ObedientEnv(full.url) as holder:
            holder.reset()
            for way in ("blocking", "async"):
                client = WAYS[way](full.url)
                with pytest.raises(CapacityReached, match="1/1"):
                    client.reset()
                client.close()

    @pytest.mark.parametrize("way", ["blocking", "async"])
    def test_a_lost_session_is_said_to_be_lost_and_stays_lost(self, way: str) -> None:
        with running(create_app(Obedient, max_concurrent_envs=2)) as server:
            client: Client = (
                ObedientEnv(server.url, reconnect_s=0.3)
                if way == "blocking"
                else Awaited(ObedientEnv.aio(server.url, reconnect_s=0.3))
            )
            client.reset()
        for _ in range(2):
            with pytest.raises(SessionLost, match="is gone"):
                client.step(Order(do="x"))
        client.close()


class TestLocal:
    def test_an_unknown_keyword_is_named(self) -> None:
        class Strict(EnvClient[EchoAction, EchoObservation, EchoState]): ...

        with (
            Strict.local("envtorch.envs.echo_env.environment:EchoEnvironment") as env,
            pytest.raises(InvalidAction, match="reset does not take 'sead'"),
        ):
            env.reset(sead=1)

    def test_an_async_environment_runs_without_a_loop_of_yours(self) -> None:
        with ObedientEnv.local(AsyncObedient) as env:
            env.reset()
            assert env.step(Order(do="x")).observation.said == "x"
            assert env.state().step_count == 1

    def test_an_instance_will_do(self) -> None:
        environment = Obedient()
        with ObedientEnv.local(environment) as env:
            env.reset(episode_id="shared")
            assert environment.state.episode_id == "shared"

    def test_nothing_to_run_says_what_to_write(self) -> None:
        class Bare(EnvClient[Order, Report, Count]): ...

        with pytest.raises(ConfigurationError, match=r"MyEnv\.local\(MyEnvironment\)"):
            Bare.local()


class TestHttp:
    def test_headers_seed_and_request_id_are_sent(self, server: Running) -> None:
        with ObedientHttp(server.url + "/", default_headers={"X-Trace": "1"}) as env:
            assert env.reset(seed=5, episode_id="e", headers={"X-More": "2"}).observation.said == "seed 5"
            assert env.step(Order(do="timeout"), timeout_s=0.75, request_id="r").observation.said == "0.75"
            assert env.state().episode_id == "e"

    def test_closing_frees_the_slot_and_stops_what_was_started(self, server: Running) -> None:
        stopped: list[bool] = []

        class Provider:
            def stop_container(self) -> None:
                stopped.append(True)

        before = server.sessions.active
        env = ObedientHttp(server.url, provider=Provider())
        env.reset()
        assert server.sessions.active == before + 1
        env.close()
        assert (server.sessions.active, stopped) == (before, [True])

    @pytest.mark.parametrize(
        ("body", "headers", "error"),
        [
            (b"<html>sign in</html>", {}, ProtocolError),
            (b"[1]", {}, ProtocolError),
            (b"\xff", {}, ProtocolError),
            (b"no gzip", {"Content-Encoding": "gzip"}, ConnectFailed),
        ],
    )
    def test_an_answer_that_no_server_of_ours_sent_is_a_typed_error(
        self, body: bytes, headers: dict[str, str], error: type[EnvTorchError]
    ) -> None:
        app = FastAPI()
        app.post("/reset")(lambda: Response(body, headers=headers))
        with running(app) as server, ObedientHttp(server.url) as env, pytest.raises(error):
            env.reset()


class TestTokens:
    """A token is sent as it is meant, or refused without being shown."""

    def test_the_line_break_of_a_file_is_no_part_of_it(self) -> None:
        options = ClientOptions.of("http://127.0.0.1:1", token="secret\n")
        assert options.all_headers == {"Authorization": "Bearer secret"}

    def test_one_that_no_header_can_carry_is_refused_and_not_shown(self) -> None:
        options = ClientOptions.of("http://127.0.0.1:1", token="secret\nmore")
        with pytest.raises(ConfigurationError) as refused:
            options.all_headers  # noqa: B018
        assert "secret" not in str(refused.value)


def test_the_attempts_of_an_http_client_share_its_limit() -> None:
    """A proxy may not find the session at once. httpx is given what is left of the time."""
    limits: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        if len(limits) < 3:
            return httpx.Response(503, json={"code": SessionElsewhere.code, "detail": "on another replica"})
        return httpx.Response(200, json={"step_count": 3})

    with ObedientHttp("http://127.0.0.1:1", request_timeout_s=3600) as http:
        http._http = httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(answer))
        assert http.state().step_count == 3
    assert limits[0] == 3600
    assert limits == sorted(limits, reverse=True)
    assert len(set(limits)) == 3
