"""Forty agents at once on two workers, each in its session, with the official MCP client and FastMCP's."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from fastmcp import Client
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.server.workers.support import WorkersServer, workers_server
from tests.support import eventually

PARALLEL = 40


@pytest.fixture(scope="module")
def basket() -> Iterator[WorkersServer]:
    with workers_server(
        environment="tests.tools.environments:Basket",
        action_cls="envtorch.tools:CallToolAction",
        observation_cls="envtorch.tools:CallToolObservation",
        capacity=PARALLEL,
    ) as server:
        yield server


async def with_fastmcp(url: str) -> list[Any]:
    async with Client(f"{url}/mcp") as client:
        names = [tool.name for tool in await client.list_tools()]
        return [names, *[(await client.call_tool("put", {"thing": thing})).data for thing in "abc"]]


async def with_mcp(url: str) -> list[Any]:
    async with (
        streamable_http_client(f"{url}/mcp") as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        names = [tool.name for tool in (await session.list_tools()).tools]
        answers = [await session.call_tool("put", {"thing": thing}) for thing in "abc"]
        return [names, *[answer.structured_content["result"] for answer in answers]]


@pytest.mark.slow
@pytest.mark.parametrize("use", [with_fastmcp, with_mcp])
def test_forty_at_once(use: Callable[[str], Awaitable[list[Any]]], basket: WorkersServer) -> None:
    async def all_at_once() -> list[list[Any]]:
        return await asyncio.gather(*(use(basket.url) for _ in range(PARALLEL)))

    assert asyncio.run(all_at_once()) == [[["put", "look", "drop"], 1, 2, 3]] * PARALLEL
    eventually(lambda: basket.sessions() == 0, "their sessions ended with them")
