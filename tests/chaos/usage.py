"""What a process holds: descriptors, threads, processes below it, memory."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one or several processes, added up."""

    descriptors: int
    threads: int
    processes: int
    megabytes: float

    @classmethod
    def of(cls, *pids: int) -> "Usage":
        return cls(
            descriptors=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
            threads=sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids),
            processes=len(pids),
            megabytes=round(sum(_private_megabytes(pid) for pid in pids), 1),
        )

    @classmethod
    def least(cls, samples: "Iterable[Usage]") -> "Usage":
        """The least of each figure."""
        found = list(samples)
        return cls(*(min(getattr(one, field.name) for one in found) for field in fields(cls)))

    def beyond(self, before: "Usage", spare: "Usage") -> dict[str, float]:
        """What has come to it since `before`, where that is more than `spare`."""
        grown = {
            one.name: round(getattr(self, one.name) - getattr(before, one.name), 1) for one in fields(self)
        }
        return {name: amount for name, amount in grown.items() if amount > getattr(spare, name)}


def _private_megabytes(pid: int) -> float:
    """Memory that is the process's own; what forks share counts once, with the one that made it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
