"""A password in a URL opens the server, and is seen nowhere."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from envtorch import GenericEnvClient
from envtorch.cli.check_server import check_server
from envtorch.cli.evaluated import ModelChoice, directory_of
from envtorch.client.client_options import ClientOptions
from envtorch.client.http import HTTPEnvClient
from envtorch.compat.generic_client import GenericEnvClient as OpenEnvClient
from envtorch.errors import EnvTorchError
from envtorch.evaluation import served_tasks
from envtorch.rollout import OpenAIPolicy
from envtorch.shown_urls import shown_url
from tests.support import running

SECRET = "hunter2"


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A URL with a password, at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://user:{SECRET}@127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://h:1/p", "http://h:1/p"),
        (f"http://user:{SECRET}@h:1/p", "http://***@h:1/p"),
        (f"wss://{SECRET}@h", "wss://***@h"),
        (f"no server at http://user:{SECRET}@h: refused", "no server at http://***@h: refused"),
        (f"'http://user:a/{SECRET}@h' and 'http://b@c'", "'http://***@h' and 'http://***@c'"),
        ("mail me@home.example", "mail me@home.example"),
    ],
)
def test_a_password_is_left_out_and_nothing_else(text: str, shown: str) -> None:
    assert shown_url(text) == shown


async def awaited(url: str) -> None:
    await GenericEnvClient.aio(url, reconnect_s=0).reset()


CALLS: dict[str, Callable[[str], object]] = {
    "blocking": lambda url: GenericEnvClient(url, reconnect_s=0).reset(),
    "async": lambda url: asyncio.run(awaited(url)),
    "vector": lambda url: GenericEnvClient.vector(url, 2, reconnect_s=0).reset(),
    "http": lambda url: HTTPEnvClient[Any, Any, Any](url).reset(),
    "written for OpenEnv": lambda url: OpenEnvClient(base_url=url).sync().reset(),
    "no port": lambda url: GenericEnvClient(f"{url}x").reset(),
    "check": lambda url: check_server(url, actions=None, seed=1, timeout_s=5.0),
    "tasks": served_tasks,
    "a model": lambda url: asyncio.run(OpenAIPolicy(url, "m").models()),
    "a wrong model": lambda url: ModelChoice(url.replace("http", "htp"), None, 1.0, 1, False, None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_error_shows_the_password(
    call: Callable[[str], object], nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises((EnvTorchError, ConnectionError)) as caught:
        call(nowhere)
    assert "***@127.0.0.1" in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value!r} {caplog.text}"


def test_no_repr_shows_the_password(nowhere: str) -> None:
    clients = [
        GenericEnvClient(nowhere),
        GenericEnvClient.aio(nowhere),
        HTTPEnvClient[Any, Any, Any](nowhere),
        ClientOptions.of(nowhere, headers={"Authorization": SECRET}, recover="replay", elsewhere=[nowhere]),
    ]
    assert SECRET not in repr(clients)


def test_no_directory_of_results_is_named_after_the_password(nowhere: str) -> None:
    choice = ModelChoice("http://127.0.0.1/v1", "m", 1.0, 1, False, None)
    assert SECRET not in str(directory_of(nowhere, choice))
    assert str(directory_of(nowhere, choice)).startswith("evals/127.0.0.1-")


def test_the_http_client_still_sends_the_password_and_httpx_does_not_log_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = []
    app = FastAPI()

    @app.get("/state")
    async def state(request: Request) -> dict[str, str]:
        seen.append(request.headers.get("authorization"))
        return {}

    caplog.set_level(logging.INFO)
    with running(app) as server:
        url = server.url.replace("http://", f"http://user:{SECRET}@")
        client = HTTPEnvClient[Any, Any, Any](url)
        client.state()
        client.close()
    assert seen == [httpx.BasicAuth("user", SECRET)._auth_header]
    assert "HTTP Request: GET http://127.0.0.1" in caplog.text
    assert SECRET not in caplog.text
