"""OpenEnv's `MCPToolClient`, the official `mcp` client and FastMCP's use our tools over real sockets."""

from collections.abc import Iterator

import pytest

from .processes import played, tools_server

pytestmark = [pytest.mark.compat, pytest.mark.usefixtures("openenv")]

PARALLEL = 40


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def basket(openenv: None, request: pytest.FixtureRequest) -> Iterator[str]:
    with tools_server(request.param) as url:
        yield url


@pytest.mark.parametrize("kind", ["openenv", "fastmcp", "mcp"])
def test_forty_sessions_at_once_each_keep_their_own_state(basket: str, kind: str) -> None:
    runs = played("play_tools.py", basket, kind, str(PARALLEL))

    expected = {"names": ["put", "look", "drop"], "answers": [1, 2]}
    assert [{key: run[key] for key in expected} for run in runs] == [expected] * PARALLEL
    if kind == "openenv":
        assert {run["steps"] for run in runs} == {2}, "a tool call is a step"
