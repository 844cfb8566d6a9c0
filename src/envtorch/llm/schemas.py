"""Between MCP's tools, OpenAI's messages and Anthropic's."""

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["anthropic_messages", "anthropic_tools", "clean_schema", "openai_tools"]


def clean_schema(schema: Any) -> dict[str, Any]:
    """A tool's input schema as the services take it: one flat object.

    Of alternatives the object is taken, of parts that all hold the union.
    """
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}, "required": []}
    cleaned = dict(schema)
    for alternatives in ("oneOf", "anyOf"):
        options = cleaned.pop(alternatives, None)
        if isinstance(options, list):
            chosen = next((o for o in options if isinstance(o, dict) and o.get("type") == "object"), {})
            cleaned = {**cleaned, **chosen}
    parts = cleaned.pop("allOf", None)
    if isinstance(parts, list):
        merged = [clean_schema(part) for part in parts]
        cleaned["properties"] = {
            **cleaned.get("properties", {}),
            **{name: value for part in merged for name, value in part["properties"].items()},
        }
        required = [*cleaned.get("required", ()), *(name for part in merged for name in part["required"])]
        cleaned["required"] = list(dict.fromkeys(required))
    cleaned.setdefault("type", "object")
    cleaned.setdefault("properties", {})
    cleaned.setdefault("required", [])
    return cleaned


def openai_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """MCP's tools as OpenAI's functions."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": _schema_of(tool),
            },
        }
        for tool in tools
    ]


def anthropic_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """MCP's tools as Anthropic's."""
    return [
        {"name": t["name"], "description": t.get("description", ""), "input_schema": _schema_of(t)}
        for t in tools
    ]


def _schema_of(tool: dict[str, Any]) -> dict[str, Any]:
    return clean_schema(tool.get("inputSchema") or tool.get("input_schema") or {})


def anthropic_messages(messages: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """OpenAI's conversation as Anthropic's: the system prompt by itself, and the turns."""
    system = [str(m.get("content", "")) for m in messages if m.get("role") == "system"]
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") == "system":
            continue
        turn = _turn(message)
        results = message.get("role") == "tool" and turns and turns[-1]["role"] == "user"
        if results and isinstance(turns[-1]["content"], list):
            turns[-1]["content"] += turn["content"]  # the results of one round are one turn
        else:
            turns.append(turn)
    return "\n\n".join(system), turns


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content", "")
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": content}
        return {"role": "user", "content": [result]}
    if role == "assistant" and message.get("tool_calls"):
        text = [{"type": "text", "text": content}] if content else []
        return {"role": "assistant", "content": text + [_tool_use(c) for c in message["tool_calls"]]}
    return {"role": role, "content": content}


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", {})
    arguments = function.get("arguments") or "{}"
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"type": "tool_use", "id": call.get("id", ""), "name": function.get("name", ""), "input": given}
