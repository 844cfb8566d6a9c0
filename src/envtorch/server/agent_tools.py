"""An environment as an agent sees it: tools. One that has none of its own offers its `step`."""

from typing import Any

import msgspec
from pydantic import BaseModel

from envtorch.errors import EnvironmentFailed, InvalidAction
from envtorch.protocol.codec import Codec, Encoded, encode_value
from envtorch.protocol.jsonrpc import Code, RpcError
from envtorch.protocol.wire import http_observation
from envtorch.server.session import Session

__all__ = ["AgentTools"]

STEP = "step"


class AgentTools:
    """Tools in MCP's own form. Every call is a step: state, transform, rubric and reward see it."""

    def __init__(self, codec: Codec[Any, Any, Any]) -> None:
        self._codec = codec

    @property
    def name(self) -> str:
        return self._codec.spec.name

    async def begin(self, session: Session) -> str | None:
        """Begin an episode for an agent; what it should know before its first call."""
        encoded: Encoded = await session.run(session.host.reset({}, strict=False))
        if session.host.has_tools:
            return None
        return f"The episode has begun. First observation: {http_observation(encoded).decode()}"

    async def list(self, session: Session) -> bytes:
        """The answer to `tools/list`."""
        if session.host.has_tools:
            return b'{"tools":%b}' % await session.run(session.host.list_tools())
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
            if session.host.has_tools:
                return _told(await session.step(session.host.tool_answer(name, arguments)))
            if name != STEP:
                raise RpcError(Code.INVALID_PARAMS, f"Unknown tool: {name!r}")
            return _stepped(await session.step(session.host.step(arguments, {}, strict=False)))
        except (EnvironmentFailed, InvalidAction) as error:
            return _failed(str(error))


def _stepped(encoded: Encoded) -> bytes:
    body = http_observation(encoded)
    return b'{"content":[%b],"structuredContent":%b,"isError":false}' % (_text(body.decode()), body)


def _failed(message: str) -> bytes:
    return b'{"content":[%b],"isError":true}' % _text(message)


def _text(text: str) -> bytes:
    return msgspec.json.encode({"type": "text", "text": text})


def _told(answer: Any) -> bytes:
    """A tool's answer, whatever shape its environment gives it."""
    error = getattr(answer, "error", None)
    if error is not None:
        return _failed(error.message)
    result = getattr(answer, "result", answer)
    content = getattr(result, "content", None)
    structured = getattr(result, "structured_content", None)
    if not isinstance(content, list):
        structured = result if isinstance(result, dict) else None
        text = result if isinstance(result, str) else encode_value(result).decode()
        content = [{"type": "text", "text": text}]
    parts = [
        part.model_dump(mode="json", by_alias=True, exclude_none=True)
        if isinstance(part, BaseModel)
        else part
        for part in content
    ]
    told: dict[str, Any] = {"content": parts, "isError": False}
    if structured is not None:
        told["structuredContent"] = structured
    outcome = {name: getattr(answer, name) for name in ("reward", "done") if hasattr(answer, name)}
    meta = {**(getattr(result, "meta", None) or {}), **{f"envtorch/{k}": v for k, v in outcome.items()}}
    if meta:
        told["_meta"] = meta
    return encode_value(told)
