"""OpenEnv's `MCPToolClient` on the alias: an empty list where OpenEnv's client gives one."""

import asyncio
import logging

import pytest

from envtorch.compat.mcp_client import MCPToolClient
from envtorch.envs.echo_env.app import app as echo_app
from envtorch.server import create_app
from tests.support import running
from tests.tools.environments import Basket

NOBODY = "http://127.0.0.1:9"


async def tools_of(url: str, *, production: bool) -> list[str]:
    client = MCPToolClient(url)
    client.use_production_mode = production
    try:
        return [tool.name for tool in await client.list_tools()]
    finally:
        await client.close()


def test_a_server_that_is_not_there_lists_no_tools_in_production(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(tools_of(NOBODY, production=True)) == []
    assert "the server lists no tools" in caplog.text


def test_a_server_that_is_not_there_is_an_error_in_simulation() -> None:
    with pytest.raises(ConnectionError):
        asyncio.run(tools_of(NOBODY, production=False))


@pytest.mark.parametrize("production", [False, True])
def test_an_environment_lists_its_tools(production: bool) -> None:
    with running(create_app(Basket)) as server:
        assert "put" in asyncio.run(tools_of(server.url, production=production))


def test_an_environment_without_tools_lists_none_in_production() -> None:
    with running(echo_app) as server:
        assert asyncio.run(tools_of(server.url, production=True)) == []


def test_a_failure_is_not_remembered() -> None:
    async def fails() -> MCPToolClient:
        client = MCPToolClient(NOBODY)
        client.use_production_mode = True
        await client.list_tools()
        return client

    assert asyncio.run(fails())._tools_cache is None
