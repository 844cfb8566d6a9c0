"""`HarnessEnvironment`: a step is one turn of a conversation with a harness."""

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any
from uuid import uuid4

from fastmcp import FastMCP

from envtorch.compat.harness.bridge import HarnessMCPBridge, resolve_tool_conflicts, serving
from envtorch.compat.harness.turns import (
    AgenticHarnessAdapter,
    HarnessError,
    HarnessEvent,
    HarnessNotRunningError,
    HarnessResponse,
    HarnessTurnTimeoutError,
    events_to_metadata,
)
from envtorch.compat.utils import run_async_safely
from envtorch.env import Rubric, Transform
from envtorch.mcp.environment import MCPEnvironment
from envtorch.tools import CallToolAction, ListToolsAction, Tool
from envtorch.types import Action, Observation, State

__all__ = ["HarnessAction", "HarnessEnvironment"]


class HarnessAction(Action):
    """One thing to say to the harness."""

    message: str


class HarnessEnvironment(MCPEnvironment):
    """Puts a harness, with the environment's tools, behind reset and step.

    `reset` starts the harness and serves it the tools; a `HarnessAction` is one turn, and the rubric sees
    it; actions about tools work as anywhere. An episode whose harness fails ends with an observation that
    says so: `error_type` is `"harness_crashed"` or `"turn_timeout"`. Each environment needs an adapter
    of its own.
    """

    def __init__(
        self,
        adapter: AgenticHarnessAdapter,
        mcp: FastMCP | None = None,
        rubric: Rubric | None = None,
        transform: Transform[Any] | None = None,
    ) -> None:
        super().__init__(mcp if mcp is not None else FastMCP("harness-tools"), transform, rubric)
        self.adapter = adapter
        self._state = State()
        self._trajectory: list[HarnessEvent] = []
        self._bridge: HarnessMCPBridge | None = None
        self._is_active = False

    @property
    def state(self) -> State:
        return self._state

    @property
    def trajectory(self) -> list[HarnessEvent]:
        """Everything that happened in this episode."""
        return list(self._trajectory)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        return run_async_safely(self.reset_async(seed, episode_id, **kwargs))

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        """Begin anew: the old harness is ended, a fresh one started."""
        await self._end()
        try:
            tools = await self._offer_tools()
            await self.adapter.start(self.adapter.config.working_directory)
        except BaseException:
            await self._end()
            raise
        self._state = State(episode_id=episode_id or str(uuid4()))
        self._trajectory = []
        self._is_active = True
        await self._reset_rubric_async()
        told = {"episode_id": self._state.episode_id, "injected_tools": [tool.name for tool in tools]}
        return self._apply_transform(Observation(reward=0.0, metadata=told))

    async def _offer_tools(self) -> list[Tool]:
        """Serve the tools, under names that are free, and tell the harness where."""
        own = await self._registry.tools(self._current_mode)
        described = await self.describe_tools()
        resolved = resolve_tool_conflicts(described, self.adapter.BUILTIN_TOOL_NAMES)
        renames = {new.name: old.name for new, old in zip(resolved, described, strict=True)}
        address = None
        if resolved:
            self._bridge = HarnessMCPBridge(serving(own, renames))
            address = await asyncio.to_thread(self._bridge.start)
        await self.adapter.inject_tools(resolved, address)
        return resolved

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        if isinstance(action, HarnessAction):
            return await self._turn(action, timeout_s)
        if isinstance(action, ListToolsAction | CallToolAction):
            return await super().step_async(action, timeout_s, **kwargs)
        raise TypeError(
            f"HarnessEnvironment takes HarnessAction and tool actions, not {type(action).__name__}"
        )

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return run_async_safely(self.step_async(action, timeout_s, **kwargs))

    async def _turn(self, action: HarnessAction, timeout_s: float | None) -> Any:
        if not self._is_active:
            raise HarnessNotRunningError("No active episode; call reset() before step()")
        limit = self.adapter.config.session_timeout_s if timeout_s is None else timeout_s
        try:
            if not await self.adapter.is_alive():
                raise HarnessNotRunningError("the harness does not run any more")
            async with asyncio.timeout(limit):
                response = await self.adapter.send_message(action.message)
        except (TimeoutError, HarnessTurnTimeoutError) as error:
            return await self._failed(str(error) or f"the turn took longer than {limit:g} s", "turn_timeout")
        except HarnessError as error:
            return await self._failed(str(error), "harness_crashed")
        except BaseException:  # a conversation that was interrupted cannot be gone on with
            await self._end()
            raise
        return await self._told(action, response)

    async def _told(self, action: HarnessAction, response: HarnessResponse) -> Any:
        self._trajectory += response.events
        self._state.step_count += 1
        told = {
            "response": response.response,
            "turn_events": events_to_metadata(response.events),
            "turn_number": self._state.step_count,
        }
        observation = Observation(done=response.done, reward=0.0, metadata=told)
        if self.rubric is not None:
            observation.reward = await self._apply_rubric_async(action, observation)
        return self._apply_transform(observation)

    async def _failed(self, message: str, error_type: str) -> Any:
        await self._end()
        event = HarnessEvent.fatal(message)
        self._trajectory.append(event)
        told = {"error": message, "error_type": error_type, "turn_events": events_to_metadata([event])}
        return self._apply_transform(Observation(done=True, reward=0.0, metadata=told))

    async def _end(self) -> None:
        """End the harness and the bridge, whatever becomes of the caller meanwhile."""
        self._is_active = False
        await to_the_end(self._let_go())

    async def _let_go(self) -> None:
        bridge, self._bridge = self._bridge, None
        try:
            await self.adapter.stop()
        finally:
            if bridge is not None:
                await asyncio.to_thread(bridge.stop)

    def close(self) -> Awaitable[None] | None:
        """End the harness. On a loop the end is a task, which may be awaited; elsewhere it is waited for."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            run_async_safely(self._end())
            return super().close()
        return loop.create_task(self._close())

    async def _close(self) -> None:
        try:
            await self._end()
        finally:
            closing = super().close()
            if closing is not None:
                await closing


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, and do not leave before it is done even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # told below, or by the cancellation
            break
    if cancelled is not None:
        with suppress(Exception):
            task.result()
        raise cancelled
    task.result()
