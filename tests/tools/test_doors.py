"""Tools by every door: MCP's own clients, OpenEnv's JSON-RPC, and steps on the WebSocket."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError

from envtorch import MCPToolClient
from envtorch.client import GenericEnvClient
from envtorch.env import EnvSpec
from envtorch.envs.echo_env import EchoAction
from envtorch.envs.echo_env.environment import EchoEnvironment
from envtorch.errors import InvalidAction
from envtorch.mcp.tool_registry import ToolRegistry
from envtorch.protocol.codec import Codec
from envtorch.server import create_app
from envtorch.settings import ServerMode
from envtorch.tools import CallToolAction, CallToolObservation, ListToolsAction
from envtorch.types import Action, Observation, State
from tests import patient
from tests.support import PATIENCE_S, Running, eventually, running
from tests.tools.environments import Basket, Scales


@pytest.fixture(scope="module")
def basket() -> Iterator[Running]:
    app = create_app(Basket, CallToolAction, CallToolObservation, max_concurrent_envs=16)
    with running(app) as server:
        yield server


@pytest.fixture(scope="module")
def echo() -> Iterator[Running]:
    with running(create_app(EchoEnvironment, max_concurrent_envs=16)) as server:
        yield server


def rpc(server: Running, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return patient.post(f"{server.url}/mcp", json=body).json()


class TestMcpClient:
    """FastMCP's client, over streamable HTTP."""

    def test_lists_and_calls_in_one_session(self, basket: Running) -> None:
        async def use() -> tuple[list[str], list[Any]]:
            async with Client(f"{basket.url}/mcp") as client:
                names = [tool.name for tool in await client.list_tools()]
                answers = [(await client.call_tool("put", {"thing": t})).data for t in ("a", "b")]
                seen = (await client.call_tool("look", {})).structured_content
            return names, [*answers, seen]

        names, answers = asyncio.run(use())
        assert names == ["put", "look", "drop"]
        assert answers == [1, 2, {"result": ["a", "b"]}]

    def test_two_clients_have_two_baskets(self, basket: Running) -> None:
        async def use(thing: str) -> Any:
            async with Client(f"{basket.url}/mcp") as client:
                await client.call_tool("put", {"thing": thing})
                return (await client.call_tool("look", {})).structured_content

        async def both() -> list[Any]:
            return list(await asyncio.gather(use("x"), use("y")))

        assert asyncio.run(both()) == [{"result": ["x"]}, {"result": ["y"]}]

    def test_a_tool_that_fails_says_why(self, basket: Running) -> None:
        async def use(name: str) -> None:
            async with Client(f"{basket.url}/mcp") as client:
                await client.call_tool(name, {})

        with pytest.raises(ToolError, match="glued on"):
            asyncio.run(use("drop"))
        with pytest.raises(ToolError, match="Unknown tool"):
            asyncio.run(use("nothing_of_the_kind"))

    def test_an_unknown_tool_is_told_alike_by_every_environment(self, basket: Running, echo: Running) -> None:
        async def use(server: Running) -> str:
            async with Client(f"{server.url}/mcp") as client:
                with pytest.raises(ToolError) as told:
                    await client.call_tool("fly", {})
            return str(told.value)

        assert [asyncio.run(use(server)) for server in (basket, echo)] == ["Unknown tool: 'fly'"] * 2

    def test_its_session_ends_with_it(self, basket: Running) -> None:
        async def use() -> int:
            async with Client(f"{basket.url}/mcp") as client:
                await client.ping()
                return basket.sessions.active

        before = basket.sessions.active
        assert asyncio.run(use()) == before + 1
        eventually(lambda: basket.sessions.active == before, "the session is closed")

    def test_an_environment_without_tools_offers_its_step(self, echo: Running) -> None:
        async def use() -> tuple[Any, Any]:
            async with Client(f"{echo.url}/mcp") as client:
                (tool,) = await client.list_tools()
                answer = await client.call_tool("step", {"message": "hello"})
                return tool, answer

        tool, answer = asyncio.run(use())
        assert tool.name == "step"
        assert "message" in tool.model_dump(by_alias=True)["inputSchema"]["properties"]
        assert answer.structured_content["observation"]["echoed_message"] == "hello"
        assert answer.structured_content["reward"] == pytest.approx(0.5)

    def test_a_session_prepared_by_a_trainer_is_taken_up(self, echo: Running) -> None:
        with patient.Client(base_url=echo.url) as trainer:
            begun = trainer.post("/reset", json={"episode_id": "prepared"})
            session = begun.headers["EnvTorch-Session"]
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
            opened = patient.post(f"{echo.url}/mcp", json=body, headers={"EnvTorch-Session": session})
            assert opened.headers["Mcp-Session-Id"] == session
            step = {"name": "step", "arguments": {"message": "hi"}}
            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": step}
            patient.post(f"{echo.url}/mcp", json=call, headers={"Mcp-Session-Id": session})
            state = trainer.get("/state").json()
        assert state == {"episode_id": "prepared", "step_count": 1}

    def test_an_unknown_session_is_404(self, basket: Running) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = patient.post(f"{basket.url}/mcp", json=body, headers={"Mcp-Session-Id": "gone"})
        assert answer.status_code == 404

    def test_a_notification_is_accepted(self, basket: Running) -> None:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        session = patient.post(f"{basket.url}/mcp", json=body).headers["Mcp-Session-Id"]
        headers = {"Mcp-Session-Id": session}
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert patient.post(f"{basket.url}/mcp", json=told, headers=headers).status_code == 202
        assert patient.delete(f"{basket.url}/mcp", headers=headers).status_code == 204
        assert patient.delete(f"{basket.url}/mcp", headers=headers).status_code == 404


class TestOpenEnvDialect:
    def test_a_tool_call_is_a_step(self, basket: Running) -> None:
        session = rpc(basket, "openenv/session/create")["result"]["session_id"]
        answer = rpc(basket, "tools/call", name="put", arguments={"thing": "a"}, session_id=session)
        assert answer["result"]["data"] == 1
        with basket.socket(f"/ws?session_id={session}") as socket:
            socket.send('{"type":"state"}')
            assert '"step_count":1' in str(socket.recv())
        rpc(basket, "openenv/session/close", session_id=session)

    def test_failures_are_errors(self, basket: Running) -> None:
        assert "glued on" in rpc(basket, "tools/call", name="drop", arguments={})["error"]["message"]
        assert "Unknown tool" in rpc(basket, "tools/call", name="nope", arguments={})["error"]["message"]

    def test_an_environment_without_tools_says_so(self, echo: Running) -> None:
        assert rpc(echo, "tools/list")["error"]["message"] == "Environment does not support MCP"


def test_steps_list_and_call_tools_and_are_rewarded(basket: Running) -> None:
    with GenericEnvClient(basket.url) as env:
        env.reset()
        listed = env.step({"type": "list_tools"})
        put = env.step({"type": "call_tool", "tool_name": "put", "arguments": {"thing": "a"}})
        wrong = env.step({"type": "call_tool", "tool_name": "put", "arguments": {"what": 1}})
        state = env.state()
    assert [tool["name"] for tool in listed.observation["tools"]] == ["put", "look", "drop"]
    assert put.observation["result"]["data"] == 1
    assert put.reward == 1.0, "the rubric saw the call"
    assert wrong.observation["error"]["error_type"] == "invalid_args"
    assert state["step_count"] == 3


@pytest.fixture
def scales() -> Iterator[Running]:
    with running(create_app(Scales, CallToolAction, CallToolObservation, max_concurrent_envs=2)) as server:
        yield server


def called(env: GenericEnvClient, tool: str, **arguments: Any) -> dict[str, Any]:
    action = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
    observation: dict[str, Any] = env.step(action).observation
    return observation


def test_an_error_of_pydantics_inside_a_tool_is_the_tools_own(scales: Running) -> None:
    with GenericEnvClient(scales.url) as env:
        env.reset()
        assert called(env, "weigh", grams="heavy")["error"]["error_type"] == "execution_error"
        assert called(env, "weigh", grams=["heavy"])["error"]["error_type"] == "invalid_args"
        assert called(env, "weigh", grams="1500")["result"]["data"] == {"kg": 1.5}


@pytest.mark.parametrize("wrong", [{}, {"thing": ["a"]}, {"thing": "a", "more": 1}, {"context": "a"}])
def test_wrong_arguments_of_a_tool_with_a_context_are_the_callers_mistake(
    scales: Running, wrong: dict[str, Any]
) -> None:
    action = {"type": "call_tool", "tool_name": "remember", "arguments": wrong}
    with GenericEnvClient(scales.url) as env:
        env.reset()
        assert env.step(action).observation["error"]["error_type"] == "invalid_args"
        assert called(env, "remember", thing="a")["result"]["data"] == ["a"], "the session is not lost"
        assert called(env, "remember", thing="glass")["error"]["error_type"] == "execution_error"
    assert rpc(scales, "tools/call", name="remember", arguments=wrong)["error"]["data"] == {
        "code": "VALIDATION_ERROR"
    }
    with MCPToolClient(scales.url) as client, pytest.raises(InvalidAction, match="remember"):
        client.call_tool("remember", wrong)


def test_two_sessions_on_one_server_of_tools_have_their_own_errors() -> None:
    shared = FastMCP("shared")

    @shared.tool
    async def refuse(word: str, context: Context) -> str:
        await asyncio.sleep(0)
        raise ValueError(f"{word} is not allowed")

    async def use(word: str) -> str:
        registry = ToolRegistry(shared)
        try:
            await registry.call("refuse", {"word": word}, ServerMode.SIMULATION, PATIENCE_S)
        except Exception as error:
            return str(error)
        finally:
            await registry.close()
        return "nothing"

    async def many() -> list[str]:
        return list(await asyncio.gather(*(use(f"word {n}") for n in range(8))))

    before = len(shared.middleware)
    told = asyncio.run(many())
    assert [f"word {n} is not allowed" in one for n, one in enumerate(told)] == [True] * 8
    assert len(shared.middleware) == before + 1, "one for all sessions"


def test_tools_find_what_they_stored_in_their_context(scales: Running) -> None:
    with GenericEnvClient(scales.url) as env:
        env.reset()
        assert called(env, "remember", thing="a")["result"]["data"] == ["a"]
        assert called(env, "remember", thing="b")["result"]["data"] == ["a", "b"]


def test_tools_are_listed_with_all_that_their_author_says(scales: Running) -> None:
    weigher = next(t for t in rpc(scales, "tools/list")["result"]["tools"] if t["name"] == "weigh")
    assert weigher["title"] == "Weigher"
    assert weigher["annotations"]["readOnlyHint"] is True
    assert weigher["_meta"]["unit"] == "kg"
    assert weigher["outputSchema"]["type"] == "object"


def test_an_action_class_may_have_the_last_word() -> None:
    """Some authors override `model_validate` to choose among classes; a `TypeAdapter` would not ask."""

    class Chooses(Action):
        @classmethod
        def model_validate(cls, obj: Any, **options: Any) -> Any:
            return ListToolsAction() if obj.get("type") == "list_tools" else EchoAction.model_validate(obj)

    codec: Codec[Any, Any, Any] = Codec(EnvSpec(Chooses, Observation, State))
    assert isinstance(codec.decode_action(b'{"type":"list_tools"}'), ListToolsAction)
    assert codec.decode_action({"message": "hi"}) == EchoAction(message="hi")
    with pytest.raises(InvalidAction):
        codec.decode_action(b'{"nothing":1}')
