"""Keeps the limits of sandboxes that have no control group: one thread looks at what they use.

Rlimits hold for each process. What the processes of a sandbox use together is measured here, ten times a
second while code runs for longer than that or has left processes behind, else once a second.
"""

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from .policy import Policy
from .usage import Usage

__all__ = ["Excess", "Monitor", "Monitored", "find_excess"]

_QUICK_S, _SLOW_S = 0.1, 1.0
_COST_FACTOR = 5
"""Measuring takes at most one part in so many of a core, for each sandbox. Time in which other work had the
core does not count: a busy machine must not make limits looser."""
OVERHEAD_BYTES = 32 * 1024 * 1024
OVERHEAD_PROCESSES = 4
_DESCRIPTOR_FACTOR = 4
"""So many times `open_files` may be open in all processes of a sandbox together."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit of the sandbox as a whole that was exceeded."""

    resource: str
    """`memory`, `processes` or `descriptors`."""
    used: int
    limit: int

    def __str__(self) -> str:
        if self.resource == "memory":
            used, limit = (f"{number / 2**20:.0f} MB" for number in (self.used, self.limit))
            return f"its processes used {used} of memory together, and the limit is {limit}"
        kinds = {"processes": "processes and threads", "descriptors": "open descriptors"}
        return f"it had {self.used} {kinds[self.resource]}, and the limit is {self.limit}"


def memory_limit(policy: Policy) -> int:
    """What the processes of a sandbox may use together: files of the workspace are memory, too."""
    return policy.memory_bytes + policy.disk_bytes + OVERHEAD_BYTES


def process_limit(policy: Policy) -> int:
    return policy.processes + OVERHEAD_PROCESSES


def find_excess(usage: Usage, policy: Policy) -> Excess | None:
    """The first limit of `policy` that `usage` exceeds."""
    for resource, used, limit in (
        ("processes", usage.threads, process_limit(policy)),
        ("memory", usage.memory_bytes, memory_limit(policy)),
        ("descriptors", usage.descriptors, _DESCRIPTOR_FACTOR * policy.open_files),
    ):
        if used > limit:
            return Excess(resource, used, limit)
    return None


class Monitored(Protocol):
    """A sandbox whose limits the monitor keeps."""

    policy: Policy

    @property
    def busy_since(self) -> float | None:
        """When the request began that it works on, by the monotonic clock."""

    def measure_usage(self) -> Usage | None:
        """None when it has ended."""

    def end_excess(self, excess: Excess, usage: Usage) -> None:
        """End what uses too much."""


@dataclass(slots=True)
class _Record:
    """When a sandbox was last measured, in how much CPU time, and whether it had more than one thread."""

    moment: float
    cost: float = 0.0
    crowded: bool = False


class Monitor:
    """The thread, which runs while there is a sandbox to look at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[Monitored, _Record] = {}
        self._wake = threading.Event()
        self._slow = True
        self._thread: threading.Thread | None = None

    @property
    def runs(self) -> bool:
        return self._thread is not None

    def add(self, sandbox: Monitored) -> None:
        with self._lock:
            self._records[sandbox] = _Record(time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="sandbox-monitor", daemon=True)
                self._thread.start()

    def remove(self, sandbox: Monitored) -> None:
        with self._lock:
            self._records.pop(sandbox, None)
            last = not self._records
        if last:
            self._wake.set()

    def notice(self) -> None:
        """A sandbox has become busy: look more often."""
        if self._slow:
            self._slow = False
            self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait(_SLOW_S if self._slow else _QUICK_S)
            with self._lock:
                self._wake.clear()
                if not self._records:
                    self._thread = None
                    return
                records = list(self._records.items())
            self._slow = not any(record.crowded or sandbox.busy_since for sandbox, record in records)
            for sandbox, record in records:
                if _is_due(sandbox, record, time.monotonic()):
                    self._look_at(sandbox, record)

    def _look_at(self, sandbox: Monitored, record: _Record) -> None:
        began = time.thread_time()
        usage = None
        with contextlib.suppress(OSError):  # it ends while we look
            usage = sandbox.measure_usage()
        if usage is None:
            self.remove(sandbox)
            return
        record.moment = time.monotonic()
        record.cost = time.thread_time() - began
        record.crowded = usage.threads > 1
        excess = find_excess(usage, sandbox.policy)
        if excess is not None:
            sandbox.end_excess(excess, usage)


def _is_due(sandbox: Monitored, record: _Record, now: float) -> bool:
    since = sandbox.busy_since
    quick = record.crowded or (since is not None and now - since >= _QUICK_S)
    return now - record.moment >= max(_QUICK_S if quick else _SLOW_S, _COST_FACTOR * record.cost)
