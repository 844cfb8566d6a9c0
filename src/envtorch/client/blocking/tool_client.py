"""The blocking client of environments that are made of tools."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envtorch.client.blocking.client import EnvClient
from envtorch.protocol.tool_requests import ask_call, read_tools
from envtorch.tools import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
)
from envtorch.types import Action, Observation, State, StepResult

if TYPE_CHECKING:
    from envtorch.client.aio.tool_client import AsyncToolFactory

__all__ = ["AnyObservation", "MCPToolClient"]


class AsyncToolTwin:
    """`MCPToolClient.aio`, which imports asyncio only when it is used."""

    def __get__(self, instance: object, owner: Any) -> "AsyncToolFactory":
        from envtorch.client.aio.tool_client import AsyncToolFactory

        return AsyncToolFactory(owner)


class MCPToolClient(EnvClient[Action, Observation, State]):
    """One session on any environment that has tools, without its classes.

        with MCPToolClient("http://127.0.0.1:8000") as env:
            env.reset(seed=7)
            env.list_tools()
            env.call_tool("put", {"thing": "apple"})

    On a server of ours a tool call is a step: `state` counts it and the rubric sees it. To have its
    reward too, take the step yourself: `env.step(CallToolAction(...))`. `MCPToolClient.aio(...)` is the async
    twin. A server in production mode takes tool calls and nothing else.
    """

    aio = AsyncToolTwin()

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        """What a tool answers.

        Raises `InvalidAction` for a tool that is not there, `EnvironmentFailed` with the tool's own reason.
        """
        return self._run(lambda format: ask_call(name, arguments, format), timeout_s)

    def _step_payload(self, action: Action) -> dict[str, Any]:
        if isinstance(action, ListToolsAction):
            return {"type": action.type}
        if isinstance(action, CallToolAction):
            return {"type": action.type, "tool_name": action.tool_name, "arguments": action.arguments}
        return super()._step_payload(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Observation]:
        told = payload.get("observation", {})
        outcome = {"done": payload.get("done", False), "reward": payload.get("reward")}
        observation: Observation
        if "tools" in told:
            observation = ListToolsObservation(tools=read_tools(told["tools"]), **outcome)
        elif "tool_name" in told:
            names = ("tool_name", "result", "error", "metadata")
            observation = CallToolObservation(**{n: told[n] for n in names if n in told}, **outcome)
        else:
            observation = AnyObservation(**told, **outcome)
        return StepResult(observation=observation, reward=outcome["reward"], done=outcome["done"])

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


class AnyObservation(Observation, extra="allow"):
    """What an environment showed that is not about tools."""
