"""What no server should have to write to its log: errors that nobody handled, tasks that nobody awaited."""

import itertools
import re
from collections.abc import Sequence

PATTERN = re.compile(
    r"Traceback|was destroyed but it is pending|never retrieved|never awaited|Exception ignored"
)


def complaints(lines: Sequence[str]) -> list[str]:
    """The complaints among a log's lines, each with the line after it."""
    return [
        f"{line} {after}".rstrip() for line, after in itertools.pairwise([*lines, ""]) if PATTERN.search(line)
    ]
