"""Uses the basket's tools with one kind of client and prints what happened: `play_tools.py URL KIND`."""

import asyncio
import json
import sys
from typing import Any


async def with_openenv(url: str) -> dict[str, Any]:
    from openenv.core.mcp_client import MCPToolClient

    async with MCPToolClient(base_url=url) as client:
        await client.reset()
        names = [tool.name for tool in await client.list_tools()]
        answers = [await client.call_tool("put", thing=thing) for thing in ("a", "b")]
        state = await client.state()
    return {"names": names, "answers": answers, "steps": state.step_count}


async def with_fastmcp(url: str) -> dict[str, Any]:
    from fastmcp import Client

    async with Client(f"{url}/mcp") as client:
        names = [tool.name for tool in await client.list_tools()]
        answers = [(await client.call_tool("put", {"thing": thing})).data for thing in ("a", "b")]
    return {"names": names, "answers": answers}


async def with_mcp(url: str) -> dict[str, Any]:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with (
        streamablehttp_client(f"{url}/mcp") as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        names = [tool.name for tool in (await session.list_tools()).tools]
        answers = [
            (await session.call_tool("put", {"thing": thing})).structuredContent["result"]
            for thing in ("a", "b")
        ]
    return {"names": names, "answers": answers}


PLAYS = {"openenv": with_openenv, "fastmcp": with_fastmcp, "mcp": with_mcp}


async def play(url: str, kind: str, times: int) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(PLAYS[kind](url) for _ in range(times))))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(play(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
