"""When text is a final answer.

A final answer is declared by a line that begins with `FINAL(` or `FINAL_VAR(`, white space aside, if nothing
but white space follows, on its line, the parenthesis that closes it. Parentheses are counted and quotes are
not, for answers are prose and have apostrophes. So `FINAL(f(x) + g(y))` is an answer, over as many lines as
it needs. These are not: `use FINAL(x) when done`, `FINAL(1), I think`, `FINAL(never closed`, `"FINAL(x)"`.

The first `FINAL` of a text is taken, and `FINAL_VAR` only where there is none; its name may be quoted.
"""

import re
from dataclasses import dataclass

__all__ = ["Final", "find_final"]

_OPENINGS = re.compile(r"^[ \t]*FINAL(?P<variable>_VAR)?(?P<open>\()", re.MULTILINE)
_PARENTHESES = re.compile(r"[()]")
_LAST_OF_A_LINE = re.compile(r"\)(?=[^\S\n]*+(?:\n|\Z))")
_NAME = re.compile(r"""\s*(?P<quote>['"]?)(?P<name>\w+)(?P=quote)\s*""")


@dataclass(frozen=True, slots=True)
class Final:
    """What was declared: an answer, or the name of the variable that holds it."""

    value: str
    is_variable: bool = False


def find_final(text: str) -> Final | None:
    """The final answer that `text` declares, if it declares one. Takes time in proportion to its length: it
    may be hostile, and long."""
    openings = list(_OPENINGS.finditer(text))
    if not openings:
        return None
    closings = _closings(text)
    ends_of_lines = {match.start() for match in _LAST_OF_A_LINE.finditer(text)}
    variable: Final | None = None
    for opening in openings:
        start = opening.start("open")
        end = closings.get(start)
        if end is None or end not in ends_of_lines:
            continue
        if opening["variable"] is None:
            return Final(text[start + 1 : end].strip())
        name = _NAME.fullmatch(text, start + 1, end) if variable is None else None
        if name is not None and name["name"].isidentifier():
            variable = Final(name["name"], is_variable=True)
    return variable


def _closings(text: str) -> dict[int, int]:
    """Where each parenthesis is closed."""
    found: dict[int, int] = {}
    open_ones: list[int] = []
    for match in _PARENTHESES.finditer(text):
        if match[0] == "(":
            open_ones.append(match.start())
        elif open_ones:
            found[open_ones.pop()] = match.start()
    return found
