"""What came of a framework's tests: kept in a file, and shown as rows of one table."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel
from rich.markup import escape
from rich.table import Table

__all__ = ["FrameworkResult", "FrameworkStatus", "PlayedTest", "table_of"]


class FrameworkStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_INSTALLED = "not installed"
    SKIPPED = "skipped"
    """This machine has no interpreter for it."""


class PlayedTest(BaseModel):
    """One line of the file that `tests/train/conftest.py` writes."""

    test: str
    outcome: str
    cpu_s: float
    rows: list[tuple[str, str]]
    problem: str

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """Its rows of the table. The CPU seconds are those of the whole test, in its first row."""
        spent = f"{self.cpu_s:.1f}"
        if self.outcome != "passed":
            yield self.test, f"{self.outcome.upper()}: {self.problem}", spent
        for place, (what, result) in enumerate(self.rows if self.outcome == "passed" else ()):
            yield what, result, spent if place == 0 else ""


class FrameworkResult(BaseModel):
    """One framework's part of the table."""

    name: str
    version: str
    python: str
    status: FrameworkStatus
    reason: str = ""
    """Why nothing ran, or what else went wrong."""
    tests: list[PlayedTest] = []

    @classmethod
    def read(cls, path: Path) -> "FrameworkResult | None":
        """What an earlier run has kept."""
        return cls.model_validate_json(path.read_text()) if path.exists() else None

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1))

    @property
    def cpu_s(self) -> float:
        return sum(test.cpu_s for test in self.tests)

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """What ran, its result, and CPU seconds, row by row."""
        if self.reason:
            yield "nothing" if not self.tests else "its tests", f"{self.status.upper()}: {self.reason}", ""
        told = [test for test in self.tests if test.rows or test.outcome != "passed"]
        for test in told:
            yield from test.shown()
        others = [test for test in self.tests if test not in told]
        if others:
            yield (
                "further tests of the adapter",
                f"{len(others)} passed",
                f"{sum(t.cpu_s for t in others):.1f}",
            )


def table_of(results: Sequence[FrameworkResult]) -> Table:
    """One table of all frameworks."""
    table = Table("framework", "version", "what ran", "result", "CPU s")
    table.columns[-1].justify = "right"
    for result in results:
        version = f"{result.version}, Python {result.python}" if result.python else result.version
        for place, row in enumerate(result.shown()):
            table.add_row(*((result.name, version) if place == 0 else ("", "")), *map(escape, row))
        table.add_section()
    return table
