"""A tool's answer in MCP's own form: the result of `tools/call`."""

from typing import Any

import msgspec
from pydantic import BaseModel

from envtorch.protocol.encoding import encode_value, reward_of
from envtorch.protocol.messages import read_json
from envtorch.types import Tool

__all__ = ["failed_result", "is_done", "text_part", "tool_description", "tool_result"]

DONE = "envtorch/done"
"""The key of a result's `_meta` that says whether the episode is over."""


_SPELLING = {
    "title": "title",
    "output_schema": "outputSchema",
    "annotations": "annotations",
    "icons": "icons",
    "meta": "_meta",
}
"""The fields of `DescribedTool`, as MCP spells them."""


def tool_description(tool: Tool) -> dict[str, Any]:
    """A tool in MCP's spelling, with all that its environment says about it."""
    said = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    for field, spelling in _SPELLING.items():
        value = getattr(tool, field, None)
        if value is not None:
            said[spelling] = value
    return said


def tool_result(answer: Any) -> bytes:
    """A tool's answer, whatever shape its environment gives it."""
    error = getattr(answer, "error", None)
    if error is not None:
        return failed_result(error.message)
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
    if "reward" in outcome:
        outcome["reward"] = reward_of(outcome["reward"], strict=True, method="the tool")
    meta = {**(getattr(result, "meta", None) or {}), **{f"envtorch/{k}": v for k, v in outcome.items()}}
    if meta:
        told["_meta"] = meta
    return encode_value(told)


def is_done(result: bytes) -> bool:
    """Whether a result that `tool_result` gave says that the episode is over."""
    if DONE.encode() not in result:
        return False
    return bool((read_json(result).get("_meta") or {}).get(DONE))


def failed_result(message: str) -> bytes:
    """A failure of the tool itself, which MCP has as a result."""
    return b'{"content":[%b],"isError":true}' % text_part(message)


def text_part(text: str) -> bytes:
    """One part of a result: text."""
    return msgspec.json.encode({"type": "text", "text": text})
