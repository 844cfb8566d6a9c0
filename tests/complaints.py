"""What no server should have to write to its log: errors that nobody handled, tasks that nobody awaited."""

import itertools
import re
from collections.abc import Sequence

PATTERN = re.compile(
    r"Traceback|was destroyed but it is pending|never retrieved|never awaited|Exception ignored"
)


def complaints(lines: Sequence[str]) -> list[str]:
    """The complaints among a log's lines, each with its traceback, else the next line."""
    return [
        " ".join(_with_what_follows(lines[place:])).rstrip()
        for place, line in enumerate(lines)
        if PATTERN.search(line)
    ]


def _with_what_follows(lines: Sequence[str]) -> Sequence[str]:
    if "Traceback" not in lines[0]:
        return lines[:2]
    frames = list(itertools.takewhile(lambda line: line.startswith(" "), lines[1:]))
    return lines[: len(frames) + 2]  # up to the exception itself
