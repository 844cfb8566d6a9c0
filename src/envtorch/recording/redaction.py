"""What is never written down: fields that are declared secret, and names that can mean nothing else."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["REDACTED", "Redactor"]

REDACTED = "**********"
"""What stands in a recording where a secret was."""

_TELLING = re.compile(
    r"(^|[_-])(api_?key|access_?token|auth_?token|hf_?token|secret_?key|client_?secret|private_?key|password|passwd"
    r"|passphrase|authorization|credentials?)$",
    re.IGNORECASE,
)
"""Names of secrets in any environment. A bare `token` is not among them: to a language model it is a word."""


class Redactor:
    """Takes secrets out of what callers send.

    A field is secret if the action's schema says so (pydantic's `SecretStr`, or `format: password`), if its
    name says so (`api_key`, `password`, ...), or if it is among the `names` given.
    """

    def __init__(self, schema: Mapping[str, Any] | None = None, names: Iterable[str] = ()) -> None:
        self._names = {*names, *_secret_fields(schema or {}, (schema or {}).get("$defs", {}), set())}

    def clean(self, value: Any) -> tuple[Any, bool]:
        """`value` without its secrets, and whether there were any."""
        if isinstance(value, dict):
            cleaned = {key: self._field(key, item) for key, item in value.items()}
            return {key: item for key, (item, _) in cleaned.items()}, any(hit for _, hit in cleaned.values())
        if isinstance(value, list):
            items = [self.clean(item) for item in value]
            return [item for item, _ in items], any(hit for _, hit in items)
        return value, False

    def _field(self, name: Any, value: Any) -> tuple[Any, bool]:
        is_empty = value is None or (isinstance(value, str) and not value)
        if not is_empty and (name in self._names or _TELLING.search(str(name))):
            return REDACTED, True
        return self.clean(value)


def _secret_fields(schema: Any, defs: Mapping[str, Any], seen: set[str]) -> set[str]:
    """The names of the properties that a schema marks as secret, however deep."""
    found: set[str] = set()
    if isinstance(schema, list):
        return found.union(*(_secret_fields(part, defs, seen) for part in schema))
    if not isinstance(schema, Mapping):
        return found
    for name, part in schema.get("properties", {}).items():
        if _is_secret(part):
            found.add(name)
    reference = schema.get("$ref", "")
    if reference and reference not in seen:
        seen.add(reference)
        found |= _secret_fields(defs.get(reference.rpartition("/")[2]), defs, seen)
    for part in schema.values():
        if isinstance(part, Mapping | list):
            found |= _secret_fields(part, defs, seen)
    return found


def _is_secret(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    if schema.get("format") == "password" or schema.get("writeOnly") is True:
        return True
    return any(_is_secret(part) for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ()))
