"""Our own client of tools, in both colours, against every kind of server and none at all."""

import asyncio
from collections.abc import Iterator
from typing import assert_type

import pytest

from envtorch import MCPToolClient
from envtorch.client import AsyncMCPToolClient
from envtorch.client.client_options import Wire
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.errors import EnvironmentFailed, InvalidAction, NotAllowed, Unsupported
from envtorch.server import create_app
from envtorch.tools import CallToolAction, CallToolObservation, ListToolsAction, ListToolsObservation, Tool
from tests.support import Running, running
from tests.tools.environments import Basket


@pytest.fixture(scope="module", params=["simulation", "production"])
def basket(request: pytest.FixtureRequest) -> Iterator[Running]:
    app = create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=16, mode=request.param)
    with running(app) as server:
        yield server


def play(env: MCPToolClient) -> None:
    assert_type(env.list_tools(), list[Tool])
    assert [tool.name for tool in env.list_tools()] == ["put", "look", "drop"]
    assert env.list_tools()[0].input_schema["required"] == ["thing"]
    assert env.call_tool("put", {"thing": "apple"}) == 1
    assert env.call_tool("put", {"thing": "pear"}, timeout_s=30) == 2
    assert env.call_tool("look") == ["apple", "pear"]
    with pytest.raises(EnvironmentFailed, match=r"the tool 'drop' failed.*glued on"):
        env.call_tool("drop")
    with pytest.raises(InvalidAction, match="Unknown tool: 'fly'"):
        env.call_tool("fly")
    for wrong in ({"thing": ["apple"]}, {}):
        with pytest.raises(InvalidAction, match="thing"):
            env.call_tool("put", wrong)
    assert env.call_tool("look") == ["apple", "pear"]


async def play_async(env: AsyncMCPToolClient) -> None:
    assert [tool.name for tool in await env.list_tools()] == ["put", "look", "drop"]
    assert await env.call_tool("put", {"thing": "apple"}) == 1
    with pytest.raises(EnvironmentFailed, match="glued on"):
        await env.call_tool("drop")
    assert await env.call_tool("look") == ["apple"]


@pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
def test_blocking(basket: Running, wire: Wire) -> None:
    with MCPToolClient(basket.url, wire=wire) as env:
        play(env)


@pytest.mark.parametrize("wire", ["json", "msgpack", "openenv"])
def test_awaited(basket: Running, wire: Wire) -> None:
    async def use() -> None:
        async with MCPToolClient.aio(basket.url, wire=wire) as env:
            assert_type(env, AsyncMCPToolClient)
            await play_async(env)

    asyncio.run(use())


def test_without_a_server() -> None:
    with MCPToolClient.local(Basket) as env:
        play(env)

    async def use() -> None:
        async with MCPToolClient.aio.local(Basket) as env:
            await play_async(env)

    asyncio.run(use())


def test_a_call_is_a_step_with_a_reward() -> None:
    app = create_app(Basket, CallToolAction, CallToolObservation, mode="simulation")
    with running(app) as server, MCPToolClient(server.url) as env:
        env.reset(episode_id="mine")
        env.call_tool("put", {"thing": "apple"})
        result = env.step(CallToolAction(tool_name="put", arguments={"thing": "pear"}))
        assert isinstance(result.observation, CallToolObservation)
        assert (result.reward, env.state().step_count, env.state().episode_id) == (2.0, 2, "mine")
        listed = env.step(ListToolsAction()).observation
        assert isinstance(listed, ListToolsObservation)
        assert len(listed.tools) == 3


def test_production_takes_no_steps() -> None:
    app = create_app(Basket, CallToolAction, CallToolObservation, mode="production")
    with running(app) as server, MCPToolClient(server.url) as env, pytest.raises(NotAllowed):
        env.step(ListToolsAction())


def test_an_environment_without_tools_says_so() -> None:
    with running(create_app(EchoEnvironment)) as server, MCPToolClient(server.url) as env:
        with pytest.raises(Unsupported, match="no tools"):
            env.list_tools()
        assert env.reset().done is False
