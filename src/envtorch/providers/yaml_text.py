"""Manifests as YAML: block style, one way to write each value."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["yaml_documents", "yaml_text"]

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*(?::[A-Za-z0-9._/-]+)*")
"""Text that no reader takes for anything but text, the words below aside."""
LONGEST_KEY = 1022
"""YAML's limit for a key on one line, with its colon."""
NOT_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))


def yaml_documents(documents: Sequence[Mapping[str, Any]]) -> str:
    """Several documents in one file."""
    return "---\n".join(map(yaml_text, documents))


def yaml_text(value: Any) -> str:
    """One document, with a line break at its end. Keys keep their order."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _entry(_key(key), inner, indented=isinstance(inner, Mapping))
    elif isinstance(value, list | tuple) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, value: Any, *, indented: bool) -> Iterator[str]:
    if not value or not isinstance(value, Mapping | list | tuple):
        yield f"{key} {_scalar(value)}"
        return
    yield key
    yield from (f"  {line}" if indented else line for line in _lines(value))


def _key(key: Any) -> str:
    written = _scalar(key)
    if len(written) > LONGEST_KEY:
        raise ValueError(f"a key of {len(written)} characters is too long: YAML takes {LONGEST_KEY}")
    return f"{written}:"


def _scalar(value: Any) -> str:
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case int() | float():
            return repr(value)
        case str():
            return value if PLAIN.fullmatch(value) and value.lower() not in NOT_TEXT else _quoted(value)
        case _ if not value:
            return "{}" if isinstance(value, Mapping) else "[]"
    raise TypeError(f"{value!r} has no form in a manifest")


def _quoted(text: str) -> str:
    return (
        '"'
        + "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else _code(c) for c in text)
        + '"'
    )


def _code(character: str) -> str:
    return f"\\{character}" if character in '"\\' else f"\\U{ord(character):08x}"
