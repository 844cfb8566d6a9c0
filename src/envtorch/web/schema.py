"""From a JSON schema to the fields of a form, and from what a person filled in to a JSON object.

Nothing here knows how a field is drawn: `widgets` does.
"""

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envtorch.errors import InvalidAction

__all__ = ["MASK", "MISSING", "Field", "Kind", "assemble", "fields_of", "is_secret", "leaves", "masked"]

MISSING: Any = object()
"""There is no default."""

MASK = "••••••"

Path = tuple[str, ...]

_SECRET_ENDINGS = ("api_key", "apikey", "token", "secret", "password")
_LONG_NAMES = ("message", "response", "text", "content", "answer", "prompt", "context", "query")
_MAX_DEPTH = 3


class Kind(enum.Enum):
    """How a field is filled in."""

    TEXT = "text"
    LONG_TEXT = "long text"
    CODE = "code"
    SECRET = "secret"  # noqa: S105
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    CHOICES = "choices"
    OBJECT = "object"
    FIXED = "fixed"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Field:
    """One field: what it is called, what it takes, and, for an object, what is in it."""

    path: Path
    kind: Kind
    required: bool = False
    default: Any = MISSING
    help: str = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    children: tuple["Field", ...] = ()

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")


def fields_of(
    schema: Mapping[str, Any], *, skip: frozenset[str] = frozenset({"metadata"})
) -> tuple[Field, ...]:
    """The fields of an object's schema, in its order, those that must be filled in first."""
    reader = _Reader(schema)
    found = [field for field in reader.fields(schema, ()) if field.name not in skip]
    return tuple(sorted(found, key=lambda field: not field.required))


class _Reader:
    """Reads one schema document; `$ref` points into it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def fields(self, schema: Mapping[str, Any], path: Path) -> Iterator[Field]:
        required = schema.get("required", ())
        for name, described in schema.get("properties", {}).items():
            yield self.field(described, (*path, name), name in required)

    def field(self, described: Mapping[str, Any], path: Path, required: bool) -> Field:
        schema, nullable = self._plain(described)
        kind = _kind(schema, path[-1], nullable)
        children: tuple[Field, ...] = ()
        if kind is Kind.OBJECT:
            if len(path) < _MAX_DEPTH and required:
                children = tuple(self.fields(schema, path))
            else:
                kind = Kind.JSON  # an object that may be left out is easier left out as a whole
        default = schema.get("const", schema.get("default", MISSING))
        return Field(
            path=path,
            kind=kind,
            required=required,
            default=default,
            help=str(schema.get("description", "")),
            choices=_choices(schema, kind),
            minimum=schema.get("minimum", schema.get("exclusiveMinimum")),
            maximum=schema.get("maximum", schema.get("exclusiveMaximum")),
            children=children,
        )

    def _plain(self, schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """A schema without references and without `| null`; and whether it had the latter."""
        merged = dict(schema)
        nullable = False
        for _ in range(10):
            if "$ref" in merged:
                target = self._target(merged.pop("$ref"))
                merged = {**target, **merged}
            elif len(merged.get("allOf", ())) == 1:
                (only,) = merged.pop("allOf")
                merged = {**only, **merged}
            elif "anyOf" in merged or "oneOf" in merged:
                offered = merged.get("anyOf") or merged.get("oneOf") or []
                options = [option for option in offered if option.get("type") != "null"]
                nullable = nullable or len(options) < len(offered)
                if len(options) != 1:
                    return merged, nullable
                merged = {**options[0], **{k: v for k, v in merged.items() if k not in ("anyOf", "oneOf")}}
            else:
                break
        return merged, nullable

    def _target(self, reference: str) -> Mapping[str, Any]:
        found: Any = self._document
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part, {}) if isinstance(found, Mapping) else {}
        return found if isinstance(found, Mapping) else {}


def _kind(schema: Mapping[str, Any], name: str, nullable: bool) -> Kind:
    if "const" in schema:
        return Kind.FIXED
    if "enum" in schema:
        return Kind.CHOICE
    match schema.get("type"):
        case "boolean":
            return Kind.CHOICE if nullable else Kind.BOOLEAN
        case "integer":
            return Kind.INTEGER
        case "number":
            return Kind.NUMBER
        case "string":
            return _kind_of_text(schema, name.lower())
        case "array" if "enum" in schema.get("items", {}):
            return Kind.CHOICES
        case "object" if schema.get("properties"):
            return Kind.OBJECT
    return Kind.JSON


def _kind_of_text(schema: Mapping[str, Any], name: str) -> Kind:
    if is_secret(name) or schema.get("format") == "password":
        return Kind.SECRET
    if name == "code" or name.endswith("_code"):
        return Kind.CODE
    if schema.get("maxLength", 0) > 100 or any(word in name for word in _LONG_NAMES):
        return Kind.LONG_TEXT
    return Kind.TEXT


def _choices(schema: Mapping[str, Any], kind: Kind) -> tuple[Any, ...]:
    if kind is Kind.CHOICES:
        return tuple(schema["items"]["enum"])
    if kind is Kind.CHOICE:
        return tuple(schema.get("enum", (True, False)))
    return ()


def leaves(fields: tuple[Field, ...]) -> Iterator[Field]:
    """The fields that a person fills in: those of nested objects in place of the objects."""
    for field in fields:
        if field.kind is Kind.OBJECT:
            yield from leaves(field.children)
        elif field.kind is not Kind.FIXED:
            yield field


def assemble(fields: tuple[Field, ...], values: Mapping[Path, Any]) -> dict[str, Any]:
    """The JSON object that the form says. What was left empty and need not be there is left out.

    Whether it fits is for the environment to say; only what is not even JSON is refused here, with
    `InvalidAction`.
    """
    made: dict[str, Any] = {}
    for field in fields:
        if field.kind is Kind.OBJECT:
            made[field.name] = assemble(field.children, values)
        elif field.kind is Kind.FIXED:
            made[field.name] = field.default
        else:
            value = _value(field, values.get(field.path))
            if value is not MISSING:
                made[field.name] = value
    return made


def _value(field: Field, given: Any) -> Any:
    if field.kind is Kind.JSON:
        given = _from_json(field, given)
    is_empty = given is None or given == "" or given == [] or given is MISSING
    if is_empty:
        is_text = field.kind in (Kind.TEXT, Kind.LONG_TEXT, Kind.CODE, Kind.SECRET)
        return "" if field.required and is_text else MISSING
    if not field.required and field.default is not MISSING and given == field.default:
        return MISSING
    if field.kind is Kind.INTEGER and isinstance(given, float) and given.is_integer():
        return int(given)
    return given


def _from_json(field: Field, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if not given.strip():
        return MISSING
    try:
        return json.loads(given)
    except ValueError as error:
        where = {"type": "json_invalid", "loc": field.path, "msg": f"this is not JSON: {error}"}
        raise InvalidAction("the form cannot be sent", errors=[where]) from error


def is_secret(name: str) -> bool:
    """Whether what goes under this name should not be shown."""
    return name.lower().endswith(_SECRET_ENDINGS)


def masked(value: Any) -> Any:
    """A value whose secrets may be shown: they are dots."""
    if isinstance(value, Mapping):
        return {
            name: MASK if is_secret(str(name)) and isinstance(item, str) and item else masked(item)
            for name, item in value.items()
        }
    return [masked(item) for item in value] if isinstance(value, list) else value
