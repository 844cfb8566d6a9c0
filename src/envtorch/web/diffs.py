"""What changed between two observations, field by field."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Change", "changes", "line_diff"]

Nature = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One field that is not what it was."""

    path: str
    nature: Nature
    before: Any = None
    after: Any = None


def changes(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Change]:
    """The fields that differ, in the order of what there is now; objects are looked into."""
    for name in [*after, *(name for name in before if name not in after)]:
        where = f"{path}.{name}" if path else str(name)
        if name not in before:
            yield Change(where, "added", after=after[name])
        elif name not in after:
            yield Change(where, "removed", before=before[name])
        elif isinstance(before[name], Mapping) and isinstance(after[name], Mapping):
            yield from changes(before[name], after[name], where)
        elif before[name] != after[name]:
            yield Change(where, "changed", before[name], after[name])


def line_diff(before: str, after: str) -> list[tuple[Literal[" ", "+", "-"], str]]:
    """Lines of a text with how each came to be there: kept, added or removed."""
    marks: dict[str, Literal[" ", "+", "-"]] = {" ": " ", "+": "+", "-": "-"}
    compared = difflib.ndiff(before.splitlines(), after.splitlines())
    return [(marks[line[0]], line[2:]) for line in compared if line[0] in marks]
