"""`from_docker_image` and `from_hub`: a client that starts its own server, and leaves none behind."""

import asyncio
from collections.abc import Mapping
from typing import Any, assert_type

import pytest

from envtorch.client import AsyncEnvClient, HTTPEnvClient
from envtorch.client.launch import plan, plan_hub
from envtorch.envs.echo_env import EchoAction, EchoEnv, EchoObservation, EchoState
from envtorch.errors import ConfigurationError, NotReady, ServerExited
from envtorch.providers import ProcessProvider, UVProvider, make_provider
from envtorch.providers.provider_base import ContainerProvider, Phase
from envtorch.testing import PROBE_APP
from envtorch.testing.provider import answers
from tests.providers.subjects import PROBE_PROJECT
from tests.support import Running, eventually

ECHO = "envtorch.envs.echo_env.app:app"


class HttpEcho(HTTPEnvClient[EchoAction, EchoObservation, EchoState]):
    """The echo environment over plain HTTP."""


class Recording(ContainerProvider):
    """Starts nothing: hands out a server that is already there, and keeps a diary."""

    def __init__(self, url: str, failure: Exception | None = None) -> None:
        super().__init__()
        self.diary: list[Any] = []
        self._url = url
        self._failure = failure

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        self.diary.append(("start", image, env_vars, options))
        return self._url

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        self.diary.append(("wait", base_url, timeout_s))
        if self._failure is not None:
            raise self._failure

    def stop_container(self) -> None:
        self.diary.append("stop")


def test_a_blocking_client_starts_its_server_and_stops_it() -> None:
    provider = ProcessProvider()
    with EchoEnv.from_docker_image(ECHO, provider=provider, message_timeout_s=7.0) as env:
        assert_type(env, EchoEnv)
        env.reset(seed=1)
        assert env.step(EchoAction(message="hello")).observation.echoed_message == "hello"
        assert provider.status().phase is Phase.RUNNING
        url = env.base_url
    assert provider.status().phase is Phase.ABSENT
    assert not answers(url)


def test_an_async_client_does_the_same() -> None:
    provider = ProcessProvider()

    async def play() -> str:
        env = await EchoEnv.aio.from_docker_image(ECHO, provider=provider)
        assert_type(env, AsyncEnvClient[EchoAction, EchoObservation, EchoState])
        async with env:
            await env.reset()
            result = await env.step(EchoAction(message="hello"))
            return result.observation.echoed_message

    assert asyncio.run(play()) == "hello"
    assert provider.status().phase is Phase.ABSENT


def test_an_http_client_does_the_same() -> None:
    provider = ProcessProvider()
    with HttpEcho.from_docker_image(ECHO, provider=provider, request_timeout_s=20.0) as env:
        env.reset()
        assert env.step(EchoAction(message="hello")).observation.echoed_message == "hello"
    assert provider.status().phase is Phase.ABSENT


def test_a_provider_may_be_named() -> None:
    with EchoEnv.from_docker_image(ECHO, provider="process") as env:
        env.reset()
        url = env.base_url
    assert not answers(url)
    with pytest.raises(ConfigurationError, match="there is no provider 'dokcer'"):
        make_provider("dokcer")


def test_options_go_to_whom_they_belong(echo_server: Running) -> None:
    provider = Recording(echo_server.url)
    with EchoEnv.from_docker_image(
        "echo:1", provider, env_vars={"A": "b"}, memory="1g", ready_timeout_s=9.0, headers={"x": "y"}
    ) as env:
        env.reset()
    assert provider.diary == [
        ("start", "echo:1", {"A": "b"}, {"memory": "1g"}),
        ("wait", echo_server.url, 9.0),
        "stop",
    ]
    assert env._options.headers == {"x": "y"}


def test_what_failed_to_get_ready_is_stopped() -> None:
    provider = Recording("http://127.0.0.1:9", failure=NotReady("not in time"))
    with pytest.raises(NotReady):
        EchoEnv.from_docker_image("echo:1", provider)
    assert provider.diary[-1] == "stop"
    with pytest.raises(ServerExited):
        EchoEnv.from_docker_image(PROBE_APP, ProcessProvider(), env_vars={"PROBE_EXIT": "2"})


def test_a_cancelled_start_leaves_no_server() -> None:
    provider = ProcessProvider()

    async def cancel_when_started() -> None:
        starting = asyncio.create_task(
            EchoEnv.aio.from_docker_image(PROBE_APP, provider, env_vars={"PROBE_UNHEALTHY": "1"})
        )
        await asyncio.to_thread(eventually, lambda: provider.status().is_alive, "a start")
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(cancel_when_started())
    assert provider.status().phase is Phase.ABSENT


def test_a_space_is_an_image_or_a_repository(echo_server: Running) -> None:
    provider = Recording(echo_server.url)
    with EchoEnv.from_hub("Some-Org/echo_env", provider=provider, revision="v2") as env:
        env.reset()
    assert provider.diary[0] == ("start", "registry.hf.space/some-org-echo-env:v2", None, {})
    launch = plan_hub("Some-Org/echo_env", False, None, {})
    assert isinstance(launch.provider, UVProvider)
    assert launch.image == "git+https://huggingface.co/spaces/Some-Org/echo_env"
    with pytest.raises(ConfigurationError, match="'owner/name'"):
        plan_hub("../../etc/passwd", True, None, {})


def test_a_runtime_provider_will_do_as_well() -> None:
    launched = plan("", UVProvider(PROBE_PROJECT), {}).run()
    assert answers(launched.base_url)
    launched.owner.stop_container()
    assert not answers(launched.base_url)
