"""Where two outcomes differ, and how a person reads that."""

import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

__all__ = ["Comparison", "Difference"]

MISSING: Any = msgspec.UNSET
"""Stands for a value that one side does not have."""

LONGEST = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where what was recorded and what came now are not the same."""

    path: str
    """As in `observation.board.3`."""
    recorded: Any
    now: Any

    def lines(self) -> list[str]:
        """The difference, as a person reads it: `-` what was recorded, `+` what came now."""
        if _is_text(self.recorded) and _is_text(self.now):
            before, after = self.recorded.splitlines(), self.now.splitlines()
            changed = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
            return [self.path, *(f"  {line}" for line in changed)]
        return [self.path, f"  - {_shown(self.recorded)}", f"  + {_shown(self.now)}"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How outcomes are compared. `ignore` are paths whose values do not matter; `*` stands for any part."""

    ignore: Sequence[str] = ()
    tolerance: float = 0.0
    """By how much numbers may differ, absolutely or in proportion, whichever is more."""

    def differences(self, recorded: Any, now: Any, path: str = "") -> Iterator[Difference]:
        """Every place where the two differ, in order."""
        if path and any(fnmatchcase(path, pattern) for pattern in self.ignore):
            return
        if isinstance(recorded, dict) and isinstance(now, dict):
            for name in [*recorded, *(name for name in now if name not in recorded)]:
                parts = recorded.get(name, MISSING), now.get(name, MISSING)
                yield from self.differences(*parts, f"{path}.{name}" if path else str(name))
        elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
            for index, parts in enumerate(zip(recorded, now, strict=True)):
                yield from self.differences(*parts, f"{path}.{index}" if path else str(index))
        elif not self._same(recorded, now):
            yield Difference(path or "the whole", recorded, now)

    def _same(self, recorded: Any, now: Any) -> bool:
        if _is_number(recorded) and _is_number(now):
            close = math.isclose(recorded, now, rel_tol=self.tolerance, abs_tol=self.tolerance)
            return bool(recorded == now) or close
        return type(recorded) is type(now) and bool(recorded == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\n" in value


def _shown(value: Any) -> str:
    if value is MISSING:
        return "(nothing)"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
