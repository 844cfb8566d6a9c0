"""What was measured: flat records, and the questions that tables and plots ask of them. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench.stats import Summary, paired_ratio


@dataclass(frozen=True)
class Record:
    """One measurement of one contender in one round, at some size (sessions, bytes, batch)."""

    measure: str
    contender: str
    size: int
    round: int
    values: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    """Why its values are not to be compared."""
    remarks: list[str] = field(default_factory=list)
    """What else there is to say of it."""

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "Record":
        return cls(**given)


class Failed(Exception):
    """A run had errors, so its figures are not to be compared."""


@dataclass(frozen=True)
class Records:
    """All the records of a run."""

    all: list[Record]

    def of(self, measure: str, contender: str, size: int) -> list[Record]:
        found = [r for r in self.all if (r.measure, r.contender, r.size) == (measure, contender, size)]
        return sorted(found, key=lambda record: record.round)

    def sizes(self, measure: str) -> list[int]:
        return sorted({record.size for record in self.all if record.measure == measure})

    def contenders(self, measure: str) -> list[str]:
        """In the order in which they ran."""
        return list(dict.fromkeys(record.contender for record in self.all if record.measure == measure))

    def measures(self) -> list[str]:
        return list(dict.fromkeys(record.measure for record in self.all))

    def rounds(self, measure: str, contender: str, size: int, value: str) -> dict[int, float]:
        """The value in each round. Raises `Failed` if any of them had errors, or if there is none."""
        found = self.of(measure, contender, size)
        errors = [error for record in found for error in record.errors]
        if errors:
            raise Failed(errors[0])
        rounds = {record.round: record.values[value] for record in found if value in record.values}
        if not rounds:
            raise Failed("not measured")
        return rounds

    def summary(self, measure: str, contender: str, size: int, value: str) -> Summary:
        return Summary.of(list(self.rounds(measure, contender, size, value).values()))

    def waited(self, measure: str, contenders: Iterable[str], size: int) -> float:
        """The share of time that the callers of these had to wait for a core, in the worst round."""
        return max(
            (r.values.get("waited", 0.0) for key in contenders for r in self.of(measure, key, size)),
            default=0.0,
        )

    def ratio(self, measure: str, one: str, other: str, size: int, value: str) -> Summary:
        """`one` over `other`, over the rounds that both have."""
        mine, theirs = (self.rounds(measure, key, size, value) for key in (one, other))
        both = sorted(mine.keys() & theirs.keys())
        if not both or not all(theirs[number] for number in both):
            raise Failed("nothing to compare with")
        return paired_ratio([mine[n] for n in both], [theirs[n] for n in both])


def errors_of(records: Iterable[Record]) -> list[str]:
    """Every error, with where it happened."""
    return [
        f"{record.measure}, {record.contender}, {record.size}, round {record.round + 1}: {error}"
        for record in records
        for error in record.errors
    ]
