"""An environment as an agent sees it: tools. One that has none of its own offers its `step` as one.

In production mode it does not: `reset` and `step` are simulation control, and no door offers them there.
"""

import json
from typing import Any

from envtorch.errors import EnvironmentFailed, InvalidAction
from envtorch.protocol.calls import Call
from envtorch.protocol.codec import Codec
from envtorch.protocol.encoding import Encoded, encode_value
from envtorch.protocol.jsonrpc import Code, RpcError
from envtorch.protocol.mcp_result import failed_result, text_part
from envtorch.server.sessions.registry import Sessions
from envtorch.server.sessions.session import Session
from envtorch.settings import ServerMode

__all__ = ["AgentTools"]

STEP = "step"


class AgentTools:
    """Tools in MCP's own form. Every call is a step: state, transform, rubric and reward see it."""

    def __init__(self, codec: Codec[Any, Any, Any], mode: ServerMode) -> None:
        self._codec = codec
        self._may_step = mode is ServerMode.SIMULATION

    @property
    def name(self) -> str:
        return self._codec.spec.name

    async def begin(self, session: Session) -> str | None:
        """Begin an episode for an agent; what it should know before its first call. Not in production mode:
        there the environment's tools are all that an agent uses."""
        if not self._may_step:
            return None
        encoded: Encoded = await session.call(Call.reset())
        if session.runner.has_tools:
            return None
        return f"The episode has begun. First observation: {encoded.http_body().decode()}"

    async def list(self, session: Session) -> bytes:
        """The answer to `tools/list`."""
        if session.runner.has_tools:
            return b'{"tools":%b}' % await session.call(Call("list_tools"))
        return self._step_alone()

    async def list_any(self, sessions: Sessions) -> bytes:
        """The answer to `tools/list` outside any session: every environment of a server has the same
        tools."""
        if (await sessions.spare()).has_tools:
            return b'{"tools":%b}' % await sessions.ask(Call("list_tools"))
        return self._step_alone()

    def _step_alone(self) -> bytes:
        """The tools of an environment that has none: its `step`, where an agent may take one."""
        if not self._may_step:
            return b'{"tools":[]}'
        tool = {
            "name": STEP,
            "description": f"Take one action in {self.name}. Answers with the observation, the reward, "
            "and whether the episode is done.",
            "inputSchema": self._codec.schemas()["action"],
        }
        return b'{"tools":%b}' % encode_value([tool])

    async def call(self, session: Session, params: dict[str, Any]) -> bytes:
        """The answer to `tools/call`. A tool's own failure is a result that says so, as MCP wants it."""
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not name:
            raise RpcError(Code.INVALID_PARAMS, "Missing 'name' in params")
        if not isinstance(arguments, dict):
            raise RpcError(Code.INVALID_PARAMS, "'arguments' must be an object")
        try:
            if session.runner.has_tools:
                result: bytes = await session.call(Call.with_arguments("tool_result", name, arguments))
                return result
            if name != STEP:
                return failed_result(f"Unknown tool: {name!r}")  # as FastMCP says it for tools of its own
            if not self._may_step:
                raise RpcError(Code.INVALID_PARAMS, f"Unknown tool: {name!r}")
            return _stepped(await session.call(Call.step(json.dumps(arguments).encode())))
        except (EnvironmentFailed, InvalidAction) as error:
            return failed_result(str(error))


def _stepped(encoded: Encoded) -> bytes:
    body = encoded.http_body()
    return b'{"content":[%b],"structuredContent":%b,"isError":false}' % (text_part(body.decode()), body)
