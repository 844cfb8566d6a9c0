"""What a check found, and what to do about it."""

import enum
import textwrap
from dataclasses import dataclass, field

__all__ = ["Finding", "Report", "Severity"]


class Severity(enum.Enum):
    ERROR = "error"
    """Training on this environment would go wrong."""
    WARNING = "warning"
    """It works, and something a user will want does not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    check: str
    message: str
    advice: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        lines = textwrap.wrap(f"{self.message}", 96, initial_indent="  ", subsequent_indent="  ")
        advice = textwrap.wrap(f"→ {self.advice}", 96, initial_indent="  ", subsequent_indent="    ")
        return "\n".join([f"{self.severity.value.upper()} {self.check}", *lines, *advice])


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was checked and found."""

    environment: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...] = field(default=())

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
        head = (
            f"{self.environment}: {len(self.errors)} errors, {len(self.findings) - len(self.errors)} warnings"
        )
        parts = [head, *(str(finding) for finding in self.findings)]
        if passed:
            parts.append(f"OK {', '.join(passed)}")
        return "\n\n".join(parts)
