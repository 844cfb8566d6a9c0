"""Loops: how a model, or a whole agent, is let loose on a session."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from envtorch.compat.harness.sessions import ResourceSession
from envtorch.compat.harness.values import (
    HarnessRolloutResult,
    HarnessRunLimits,
    ModelStep,
    RolloutEvent,
    ToolResult,
    ToolTraceEntry,
)
from envtorch.compat.jsonrpc import JsonRpcErrorCode, JsonRpcResponse, McpMethod
from envtorch.llm import ToolCall
from envtorch.protocol.encoding import encode_value
from envtorch.tools import RESERVED_TOOL_NAMES

__all__ = ["CLIHarnessAdapter", "HarnessAdapter", "MCPHarnessAdapter", "SessionMCPBridge"]


class SessionMCPBridge:
    """A session's tools as JSON-RPC, for agents that speak MCP."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def handle_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The response to one request."""
        id, params = request.get("id"), request.get("params") or {}
        match request.get("method"):
            case McpMethod.TOOLS_LIST:
                tools = [
                    {"name": t.name, "description": t.description, "inputSchema": t.input_schema}
                    for t in self._session.list_tools()
                ]
                response = JsonRpcResponse.success({"tools": tools}, id)
            case McpMethod.TOOLS_CALL:
                response = self._call(str(params.get("name", "")), params.get("arguments") or {}, id)
            case _:
                response = JsonRpcResponse.error_response(JsonRpcErrorCode.METHOD_NOT_FOUND, request_id=id)
        return response.model_dump()

    def _call(self, name: str, arguments: dict[str, Any], id: Any) -> JsonRpcResponse:
        def refused(code: JsonRpcErrorCode, message: str) -> JsonRpcResponse:
            return JsonRpcResponse.error_response(code, message, request_id=id)

        if name in RESERVED_TOOL_NAMES:
            return refused(JsonRpcErrorCode.INVALID_PARAMS, f"Reserved orchestration tool: {name}")
        try:
            result = self._session.call_tool(name, arguments)
        except KeyError:
            return refused(JsonRpcErrorCode.INVALID_PARAMS, f"Unknown tool: {name}")
        except ValueError as error:
            return refused(JsonRpcErrorCode.INVALID_PARAMS, str(error))
        except Exception as error:  # a session is somebody else's code
            return refused(JsonRpcErrorCode.INTERNAL_ERROR, str(error) or repr(error))
        told = {"data": result.data, "done": result.done, "metadata": result.metadata}
        return JsonRpcResponse.success(told, id)


class HarnessAdapter(ABC):
    """One way to run an agent."""

    @abstractmethod
    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Drive the model ourselves, turn by turn."""

    @abstractmethod
    def run_black_box(
        self, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Let an agent drive itself."""


class MCPHarnessAdapter(HarnessAdapter):
    """The plain loop: ask the model, call its tools, tell it what came of them."""

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        limits = limits or HarnessRunLimits()
        rollout = HarnessRolloutResult(messages=list(session.initial_messages()))
        tools = session.list_tools()
        for _ in range(limits.max_turns):
            step = model_step(list(rollout.messages), tools, dict(limits.sampling))
            rollout.prompt_ids += step.prompt_ids
            rollout.completion_ids += step.completion_ids
            rollout.logprobs += step.logprobs
            rollout.messages.append(step.response.to_message_dict())
            rollout.metrics["turns"] = rollout.metrics.get("turns", 0) + 1
            for call in step.response.tool_calls:
                self._call(session, call, rollout)
                if rollout.done or len(rollout.tool_trace) == limits.max_tool_calls:
                    return _counted(rollout)
            if not step.response.tool_calls:
                break
        return _counted(rollout)

    def _call(self, session: ResourceSession, call: ToolCall, rollout: HarnessRolloutResult) -> None:
        try:
            result = session.call_tool(call.name, call.args)
        except (KeyError, ValueError) as error:  # the model's mistake, which it is told
            result = ToolResult(error=str(error), data={"error": str(error)})
        rollout.tool_trace.append(ToolTraceEntry(call.name, call.args, result))
        rollout.events.append(RolloutEvent("tool_call", {"name": call.name, "arguments": call.args}))
        told = result.data if isinstance(result.data, str) else encode_value(result.data).decode()
        rollout.messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": told})
        rollout.done = rollout.done or result.done

    def run_black_box(
        self, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        raise NotImplementedError("this loop drives the model itself: call run_white_box")


def _counted(rollout: HarnessRolloutResult) -> HarnessRolloutResult:
    rollout.metrics["tool_calls"] = len(rollout.tool_trace)
    return rollout


Runner = Callable[[SessionMCPBridge, ResourceSession, HarnessRunLimits], HarnessRolloutResult]


class CLIHarnessAdapter(HarnessAdapter):
    """An agent that runs by itself, given a bridge to the session's tools."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        raise NotImplementedError("this agent drives itself: call run_black_box")

    def run_black_box(
        self, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        return self._runner(SessionMCPBridge(session), session, limits or HarnessRunLimits())


def as_json(value: Any) -> Any:
    """A value as plain JSON has it; what JSON cannot hold is written as text."""
    return json.loads(json.dumps(value, default=_as_text))


def _as_text(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else str(value)
