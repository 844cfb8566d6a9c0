"""The outcome of a check: what was found, what to do about it, and what could not be checked."""

import enum
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Finding", "NotRun", "Report", "Severity"]


class NotRun(Exception):
    """Raised by a check that has nothing to examine; the message says why."""


class Severity(enum.Enum):
    ERROR = "error"
    """Training on this environment would go wrong."""
    WARNING = "warning"
    """It works, and something a user will want does not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    check: str
    message: str
    advice: str
    severity: Severity = Severity.ERROR
    traceback: str = ""
    """The frames of the environment's author, where its code raised."""

    def __str__(self) -> str:
        lines = textwrap.wrap(f"{self.message}", 96, initial_indent="  ", subsequent_indent="  ")
        advice = textwrap.wrap(f"→ {self.advice}", 96, initial_indent="  ", subsequent_indent="    ")
        frames = textwrap.indent(self.traceback, "    ").splitlines()
        return "\n".join([f"{self.severity.value.upper()} {self.check}", *lines, *frames, *advice])


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was checked and found."""

    environment: str
    checks: tuple[str, ...]
    """The checks that ran, to their end or until the environment raised."""
    findings: tuple[Finding, ...] = field(default=())
    not_run: Mapping[str, str] = field(default_factory=dict)
    """The checks that did not run, and why."""
    notes: tuple[str, ...] = field(default=())
    """What is not wrong, and worth knowing."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would spoil training."""
        return not self.errors

    def raise_if_wrong(self) -> None:
        """Raise `AssertionError`, with the whole report, when there is an error."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        found = {finding.check for finding in self.findings}
        passed = [name for name in self.checks if name not in found]
        warnings = len(self.findings) - len(self.errors)
        head = f"{self.environment}: {_counted(len(self.errors), 'error')}, {_counted(warnings, 'warning')}"
        parts = [head, *(str(finding) for finding in self.findings)]
        if passed:
            parts.append(f"OK {', '.join(passed)}")
        for reason in dict.fromkeys(self.not_run.values()):
            names = [name for name, why in self.not_run.items() if why == reason]
            parts.append(f"NOT RUN {', '.join(names)}: {reason}")
        parts += [textwrap.fill(f"NOTE {note}", 98, subsequent_indent="  ") for note in self.notes]
        return "\n\n".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
