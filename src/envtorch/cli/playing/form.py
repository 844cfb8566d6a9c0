"""From an action's JSON schema to a form, and from a filled form to an action. Nothing is drawn here."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from envtorch.errors import InvalidAction

__all__ = ["FormField", "FormFieldKind", "action_of", "fields_of"]

MAX_DEPTH = 4
LONG_TEXTS = ("code", "source", "script", "program", "patch", "sql")
"""Text fields of these names want several lines."""


class FormFieldKind(Enum):
    """How a field is filled in."""

    CHOICE = "choice"
    FLAG = "flag"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    LONG_TEXT = "long text"
    SECRET = "secret"  # noqa: S105
    JSON = "json"
    """What has no better form: lists, free objects, alternatives."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One thing to fill in."""

    path: tuple[str, ...]
    kind: FormFieldKind
    required: bool
    default: Any = None
    choices: Sequence[Any] = ()
    help: str = ""

    @property
    def label(self) -> str:
        return ".".join(self.path)

    @property
    def hint(self) -> str:
        """What stands in an empty field."""
        said = self.help or {FormFieldKind.JSON: "JSON", FormFieldKind.LONG_TEXT: ""}.get(
            self.kind, self.kind.value
        )
        return said if self.required else f"{said} (optional)"


def fields_of(schema: Mapping[str, Any]) -> list[FormField]:
    """The fields of an action. `metadata`, which every action has, and constants are left out."""
    return list(_fields(schema, schema.get("$defs", {}), (), True, 0))


def _fields(
    schema: Mapping[str, Any], defs: Mapping[str, Any], path: tuple[str, ...], needed: bool, depth: int
) -> Iterator[FormField]:
    required = set(schema.get("required", ()))
    for name, part in schema.get("properties", {}).items():
        if name == "metadata" and not path:
            continue
        resolved = _resolve(part, defs)
        here, is_required = (*path, name), needed and name in required
        if "const" in resolved:
            continue
        if resolved.get("properties") and depth < MAX_DEPTH:
            yield from _fields(resolved, defs, here, is_required, depth + 1)
        else:
            yield _field(resolved, here, is_required)


def _resolve(schema: Any, defs: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without references, and without the alternative of being null."""
    resolved = dict(schema) if isinstance(schema, Mapping) else {}
    for _ in range(10):
        if "$ref" in resolved:
            target = defs.get(str(resolved.pop("$ref")).rpartition("/")[2], {})
            resolved = {**target, **resolved}
        alternatives = resolved.get("anyOf") or resolved.get("oneOf") or resolved.get("allOf")
        real = [part for part in alternatives or () if part.get("type") != "null"]
        if len(real) != 1:
            return resolved
        rest = {key: value for key, value in resolved.items() if key not in ("anyOf", "oneOf", "allOf")}
        resolved = {**real[0], **rest}
    return resolved


def _field(schema: Mapping[str, Any], path: tuple[str, ...], required: bool) -> FormField:
    default, help = schema.get("default"), str(schema.get("description", ""))
    if schema.get("enum"):
        return FormField(path, FormFieldKind.CHOICE, required, default, tuple(schema["enum"]), help)
    if schema.get("format") == "password" or schema.get("writeOnly"):
        return FormField(path, FormFieldKind.SECRET, required, None, (), help)
    kinds = {
        "boolean": FormFieldKind.FLAG,
        "integer": FormFieldKind.INTEGER,
        "number": FormFieldKind.NUMBER,
        "string": FormFieldKind.TEXT,
    }
    kind = kinds.get(str(schema.get("type")), FormFieldKind.JSON)
    if kind is FormFieldKind.TEXT and path[-1] in LONG_TEXTS:
        kind = FormFieldKind.LONG_TEXT
    return FormField(path, kind, required, default, (), help or _range(schema))


def _range(schema: Mapping[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    return f"{'' if low is None else low} .. {'' if high is None else high}".strip()


def action_of(fields: Sequence[FormField], filled: Mapping[str, Any]) -> dict[str, Any]:
    """The action that a filled form means; an optional field left empty is left out.

    Raises `InvalidAction`, naming the field, for what cannot be read as its kind.
    """
    action: dict[str, Any] = {}
    for field in fields:
        given = filled.get(field.label)
        if given is None or (given == "" and not (field.required and field.kind in _TEXTUAL)):
            if field.required and field.kind not in _TEXTUAL:
                raise InvalidAction(f"{field.label} is needed")
            continue
        value, place = _read(field, given), action
        for part in field.path[:-1]:
            place = place.setdefault(part, {})
        place[field.path[-1]] = value
    return action


_TEXTUAL = (FormFieldKind.TEXT, FormFieldKind.LONG_TEXT, FormFieldKind.SECRET)


def _read(field: FormField, given: Any) -> Any:
    try:
        match field.kind:
            case FormFieldKind.INTEGER:
                return int(given)
            case FormFieldKind.NUMBER:
                return float(given)
            case FormFieldKind.JSON:
                return json.loads(given)
    except ValueError as error:
        wanted = {FormFieldKind.INTEGER: "a whole number", FormFieldKind.NUMBER: "a number"}.get(
            field.kind, "JSON"
        )
        raise InvalidAction(f"{field.label}: {given!r} is not {wanted} ({error})") from error
    return given
