"""What /proc tells of a process and of the machine: CPU time, memory, threads, stolen time.

Each reader is a pure function of the text, and a shell that reads the file.
"""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def cpu_ticks(stat: str) -> int:
    """User and system time of a process, all threads, from `/proc/PID/stat`; the name may hold anything."""
    fields = stat.rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def parent_of(stat: str) -> int:
    return int(stat.rsplit(")", 1)[1].split()[1])


def kilobytes(text: str, name: str) -> int:
    """The value of a line such as `Pss:   12 kB`."""
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"no {name} in what /proc says")


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Ticks of all CPUs together, since boot."""

    total: int
    idle: int
    stolen: int

    @classmethod
    def parse(cls, stat: str) -> "MachineTime":
        """From `/proc/stat`. Guest time is already counted as user time."""
        fields = [int(field) for field in stat.splitlines()[0].split()[1:]]
        return cls(total=sum(fields[:8]), idle=fields[3] + fields[4], stolen=fields[7])

    def share_since(self, before: "MachineTime") -> "tuple[float, float]":
        """The shares of time spent busy, and stolen by other machines, between two readings."""
        total = max(1, self.total - before.total)
        busy = 1 - (self.idle - before.idle) / total
        return busy, (self.stolen - before.stolen) / total


def machine_time() -> MachineTime:
    return MachineTime.parse((PROC / "stat").read_text())


def descendants(pid: int) -> list[int]:
    """A process and all that came from it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                children.setdefault(parent_of((entry / "stat").read_text()), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [pid]
    for member in found:
        found.extend(children.get(member, ()))
    return found


def cpu_seconds(pid: int, *, family: bool = False) -> float:
    """CPU time so far of a process, or of it and all its descendants that live."""
    total = 0
    for member in descendants(pid) if family else [pid]:
        try:
            total += cpu_ticks((PROC / str(member) / "stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / TICKS_PER_S


def memory_mb(pid: int, *, family: bool = False) -> float:
    """Resident memory, pages that are shared counted in proportion (PSS), in MB."""
    total = 0
    for member in descendants(pid) if family else [pid]:
        try:
            total += kilobytes((PROC / str(member) / "smaps_rollup").read_text(), "Pss")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / 1024


def waited_seconds(schedstat: str) -> float:
    """How long a thread was ready to run and had to wait for a core, from `/proc/PID/schedstat`."""
    return int(schedstat.split()[1]) / 1e9


def waited() -> float:
    """How long this process had to wait for a core so far, in seconds: what company costs it."""
    return waited_seconds((PROC / "self/schedstat").read_text())


def resident_mb(pid: int) -> float:
    """Resident memory (RSS), in MB."""
    return kilobytes((PROC / str(pid) / "status").read_text(), "VmRSS") / 1024


def threads(pid: int) -> int:
    return len(list((PROC / str(pid) / "task").iterdir()))
