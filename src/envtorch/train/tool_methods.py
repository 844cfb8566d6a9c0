"""Tools as methods with a signature and a docstring, for trainers that read both."""

import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Optional

from envtorch.errors import ConfigurationError
from envtorch.types import Tool

__all__ = ["annotation_of", "method_of"]

_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def method_of(tool: Tool, call: Callable[[Any, str, dict[str, Any]], str]) -> Callable[..., str]:
    """A method with the name, the parameters and the description of a tool.

    It calls `call(self, name, arguments)`. Raises `ConfigurationError` for a tool that no method can be
    named after.
    """
    if not tool.name.isidentifier() or keyword.iskeyword(tool.name) or tool.name.startswith("_"):
        raise ConfigurationError(f"a method cannot be called {tool.name!r}: give the tool another name")
    signature = _signature(tool.input_schema)

    def method(self: Any, *args: Any, **arguments: Any) -> str:
        given = dict(signature.bind(self, *args, **arguments).arguments)
        del given["self"]
        return call(self, tool.name, given)

    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = _docstring(tool)
    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__annotations__ = {
        **{name: one.annotation for name, one in signature.parameters.items() if name != "self"},
        "return": str,
    }
    return method


def annotation_of(schema: Mapping[str, Any]) -> Any:
    """The Python type that a JSON schema describes; `dict` where Python has none as exact."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if each.get("type") != "null"]
        known = annotation_of(kinds[0]) if len(kinds) == 1 else dict
        return Optional[known] if len(kinds) < len(schema["anyOf"]) else known  # noqa: UP045, a value
    if schema.get("type") == "array" and "items" in schema:
        return list[annotation_of(schema["items"])]  # type: ignore[misc]
    kind = schema.get("type")
    return _TYPES.get(kind, dict) if isinstance(kind, str) else dict


def _signature(schema: Mapping[str, Any]) -> inspect.Signature:
    required = set(schema.get("required", ()))
    properties: Mapping[str, Any] = schema.get("properties", {})
    ordered = sorted(properties, key=lambda name: name not in required)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind)]
    for name in ordered:
        default = inspect.Parameter.empty if name in required else properties[name].get("default")
        annotation = annotation_of(properties[name])
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=str)


def _docstring(tool: Tool) -> str:
    lines = [_one_line(tool.description) or f"Call {tool.name}."]
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    if properties:
        lines += ["", "Args:"]
    for name, schema in properties.items():
        told = schema.get("description") or schema.get("title") or name
        lines.append(f"    {name}: {_one_line(told)}")
    return "\n".join([*lines, "", "Returns:", "    What the environment answers."])


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
