"""What a measurement is to the runner and to the tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from bench.contenders import Contender
from bench.records import Record


@dataclass(frozen=True)
class Effort:
    """How long and how often to measure."""

    rounds: int
    seconds: float
    sessions: tuple[int, ...]
    is_quick: bool = False
    crowds: tuple[int, ...] = ()
    """How many sessions at once, where a measurement has crowds; it knows what is usual."""


@dataclass(frozen=True)
class Column:
    """One value of a measurement, as a table shows it."""

    value: str
    heading: str
    digits: int = 1
    is_better_high: bool = False


class Measure(ABC):
    """One measurement, of every contender in turn."""

    key: ClassVar[str]
    title: ClassVar[str]
    size: ClassVar[str]
    """What the sizes are: sessions, bytes, ..."""
    columns: ClassVar[tuple[Column, ...]]
    baseline: ClassVar[str] = "openenv"
    """The contender that others are compared with."""
    notes: ClassVar[str]
    in_quick: ClassVar[bool] = False
    is_usual: ClassVar[bool] = True
    """Whether it is measured when nobody says what to measure."""

    @abstractmethod
    def contenders(self, effort: Effort) -> tuple[Contender, ...]: ...

    @abstractmethod
    def run(self, contender: Contender, effort: Effort, round_number: int) -> Iterator[Record]: ...
