"""A real program as a harness: turns as steps, tools over a bridge, and the production door."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from websockets.sync.client import ClientConnection, connect

from envtorch.compat.harness import (
    AgenticHarnessAdapter,
    HarnessConfig,
    HarnessEvent,
    HarnessNotRunningError,
    HarnessProcess,
    HarnessStartupError,
)
from envtorch.compat.harness.bridge import HarnessMCPBridge, build_bridge_server, resolve_tool_conflicts
from envtorch.compat.harness.environment import HarnessAction, HarnessEnvironment
from envtorch.compat.http_server import create_app
from envtorch.tools import CallToolAction, Tool
from envtorch.types import Action, Observation
from tests.support import PATIENCE_S, Running, eventually, running

PROGRAM = str(Path(__file__).with_name("harness_program.py"))


class LineAdapter(AgenticHarnessAdapter):
    """Talks to the program of these tests."""

    BUILTIN_TOOL_NAMES = frozenset({"put"})

    def __init__(self, *, limit_s: float = 60.0, directory: str = "/") -> None:
        super().__init__(
            HarnessConfig(
                name="lines",
                command=[sys.executable, PROGRAM],
                working_directory=directory,
                session_timeout_s=limit_s,
            )
        )
        self.process: HarnessProcess | None = None
        self.url: str | None = None

    async def inject_tools(self, tools: list[Tool], bridge_url: str | None = None) -> None:
        self.url = bridge_url

    async def start(self, working_directory: str) -> None:
        self.process = HarnessProcess([*self.config.command, self.url or "none"], cwd=working_directory)
        await self.process.start(ready_check=lambda line: line == "ready")

    async def stop(self) -> None:
        if self.process is not None:
            await self.process.stop()

    async def is_alive(self) -> bool:
        return self.process is not None and self.process.is_running()

    async def send_message_streaming(self, message: str) -> AsyncIterator[HarnessEvent]:
        assert self.process is not None
        await self.process.write_line(message)
        while line := await self.process.read_line():
            event = HarnessEvent.model_validate_json(line)
            yield event
            if event.type == "turn_complete":
                return
        if not self.process.is_running():
            raise HarnessNotRunningError(f"it ended: {self.process.drain_stderr()}")


def environment(**how: Any) -> HarnessEnvironment:
    tools = FastMCP("basket")
    things: list[str] = []

    @tools.tool
    def put(thing: str) -> int:
        """Put a thing into the basket."""
        things.append(thing)
        return len(things)

    def count(action: Any, observation: Any) -> float:
        return float(len(things))

    return HarnessEnvironment(LineAdapter(**how), tools, rubric=count)


def test_a_step_is_a_turn_and_the_harness_has_the_tools() -> None:
    env = environment()
    try:
        begun = env.reset(episode_id="mine")
        assert begun.metadata == {"episode_id": "mine", "injected_tools": ["env_put"]}
        first = env.step(HarnessAction(message="use env_put apple"))
        assert first.metadata["response"] == "1: use env_put apple"
        assert [event["type"] for event in first.metadata["turn_events"]] == [
            "tool_call",
            "tool_result",
            "turn_complete",
        ]
        assert first.metadata["turn_events"][1]["data"]["result"] == {"result": 1}
        assert first.reward == 1.0
        assert env.step(CallToolAction(tool_name="put", arguments={"thing": "pear"})).result.data == 2
        last = env.step(HarnessAction(message="bye"))
        assert (last.done, last.reward, env.state.step_count, len(env.trajectory)) == (True, 2.0, 2, 4)
        with pytest.raises(TypeError, match="not Action"):
            env.step(Action())
        again = env.reset()
        assert again.metadata["episode_id"] != "mine"
        assert env.step(HarnessAction(message="hello")).metadata["response"] == "1: hello"
    finally:
        env.close()
    assert env.adapter.process is not None  # type: ignore[attr-defined]
    assert not env.adapter.process.is_running()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("message", "kind", "sentence"),
    [("die", "harness_crashed", "it was told to"), ("mumble", "harness_crashed", "TURN_COMPLETE")],
)
def test_a_harness_that_fails_ends_the_episode(message: str, kind: str, sentence: str) -> None:
    env = environment()
    try:
        env.reset()
        ended: Observation = env.step(HarnessAction(message=message))
        assert (ended.done, ended.metadata["error_type"]) == (True, kind)
        assert sentence in ended.metadata["error"]
        with pytest.raises(HarnessNotRunningError, match=r"call reset\(\)"):
            env.step(HarnessAction(message="hello"))
        env.reset()
        assert env.step(HarnessAction(message="hello")).done is False
    finally:
        env.close()


def test_a_turn_that_takes_too_long_and_one_that_is_cancelled_leave_nothing_running() -> None:
    async def use() -> None:
        env = environment()
        adapter: Any = env.adapter
        await env.reset_async()
        late = await env.step_async(HarnessAction(message="hang"), timeout_s=0.2)
        assert late.metadata["error_type"] == "turn_timeout"
        assert not await adapter.is_alive()
        await env.reset_async()
        running_turn = asyncio.create_task(env.step_async(HarnessAction(message="hang")))
        await asyncio.sleep(0.1)
        running_turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running_turn
        assert not await adapter.is_alive()
        await env.reset_async()
        closing = env.close()
        assert closing is not None
        await closing
        assert not await adapter.is_alive()

    asyncio.run(use())


def test_a_program_that_does_not_start_is_told() -> None:
    async def start(*command: str, limit_s: float = 30.0) -> None:
        process = HarnessProcess(command, cwd="/", startup_timeout_s=limit_s)
        try:
            await process.start(ready_check=lambda line: line == "ready")
        finally:
            assert not process.is_running()

    with pytest.raises(HarnessStartupError, match="cannot be started"):
        asyncio.run(start("/no/such/program"))
    with pytest.raises(HarnessStartupError, match="ended at once: oh"):
        asyncio.run(start("sh", "-c", "echo oh >&2; sleep 0.1; exit 1"))
    with pytest.raises(HarnessStartupError, match=r"not ready within 0\.2 s"):
        asyncio.run(start("sleep", "60", limit_s=0.2))


def test_names_that_clash_are_resolved_or_refused() -> None:
    def tools(*names: str) -> list[Tool]:
        return [Tool(name=name, description="", input_schema={}) for name in names]

    assert [tool.name for tool in resolve_tool_conflicts(tools("a", "b"), {"b"})] == ["a", "env_b"]
    for names, taken in (
        (("reset",), set()),
        (("a", "a"), set()),
        (("a", "env_a"), {"a"}),
        (("a",), {"a", "env_a"}),
    ):
        with pytest.raises(ValueError, match="name"):
            resolve_tool_conflicts(tools(*names), taken)


def test_a_bridge_starts_and_stops_as_often_as_asked() -> None:
    server = FastMCP("one")
    bridge = HarnessMCPBridge(asyncio.run(build_bridge_server(server)))
    bridge.stop()
    address = bridge.start()
    assert bridge.start() == address
    bridge.stop()
    assert bridge.url is None
    assert bridge.start() != ""
    bridge.stop()


@pytest.fixture
def production() -> Iterator[Running]:
    app = create_app(environment, HarnessAction, Observation, mode="production")
    with running(app) as server:
        yield server


def open_door(server: Running) -> ClientConnection:
    return connect(f"{server.url.replace('http', 'ws')}/harness")


def hear(socket: ClientConnection) -> dict[str, Any]:
    heard: dict[str, Any] = json.loads(socket.recv(timeout=PATIENCE_S))
    return heard


def test_the_production_door_streams_a_turn(production: Running) -> None:
    with open_door(production) as socket:
        started = hear(socket)
        assert (started["type"], started["data"]["harness"]) == ("session_started", "lines")
        for frame, code in (("nonsense", "INVALID_JSON"), ('{"type": "shout"}', "VALIDATION_ERROR")):
            socket.send(frame)
            refused = hear(socket)
            assert (refused["type"], refused["data"]["code"]) == ("protocol_error", code)
        socket.send(json.dumps({"type": "message", "content": "use env_put apple"}))
        heard = [hear(socket) for _ in range(3)]
        assert [event["type"] for event in heard] == ["tool_call", "tool_result", "turn_complete"]
        assert heard[-1]["data"]["response"] == "1: use env_put apple"
        with open_door(production) as second:
            assert hear(second)["data"]["code"] == "CAPACITY_REACHED"
        socket.send(json.dumps({"type": "message", "content": "die"}))
        ended = hear(socket)
        assert (ended["type"], ended["data"]["recoverable"]) == ("error", False)

    def free() -> bool:
        with open_door(production) as again:
            return bool(hear(again)["type"] == "session_started")

    eventually(free, "the slot is free again")


def test_there_is_no_door_in_simulation() -> None:
    app = create_app(environment, HarnessAction, Observation, mode="simulation")
    assert not [route for route in app.routes if getattr(route, "path", "") == "/harness"]
