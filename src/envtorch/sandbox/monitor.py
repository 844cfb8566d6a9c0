"""Keeps the limits of sandboxes that have no control group: one thread looks at what they use.

Rlimits hold for each process. What the processes of a sandbox use together is measured here, ten times a
second while code runs for longer than that, has left processes behind, or has messages wait in netlink
sockets, else once a second. Where measuring takes long, it is done less often.
"""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from envtorch.errors import SessionLost

from .policy import Policy
from .usage import Usage

__all__ = ["Excess", "Monitor", "Monitored", "find_excess"]

logger = logging.getLogger(__name__)

_QUICK_S, _SLOW_S = 0.1, 1.0
_COST_FACTOR = 5
"""Measuring takes at most one part in so many of a core, for each sandbox. Time in which other work had the
core does not count: a busy machine must not make limits looser."""
_REST_FACTOR = 2
"""After a look at all that are due, the thread rests for so many times the CPU time that it took: sandboxes
together take at most one part in three of a core."""
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
    """When a sandbox was last measured, in how much CPU time, and what came of it."""

    moment: float
    cost: float = 0.0
    active: bool = False
    """It may use more although no request runs."""
    failed: bool = False
    """It could not be measured once, for a reason that is logged."""


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
        return self._thread is not None and self._thread.is_alive()

    def add(self, sandbox: Monitored) -> None:
        with self._lock:
            self._records[sandbox] = _Record(time.monotonic())
            if not self.runs:
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
        rest = 0.0
        while True:
            self._wake.wait(max(rest, _SLOW_S if self._slow else _QUICK_S))
            with self._lock:
                self._wake.clear()
                if not self._records:
                    self._thread = None
                    return
                records = list(self._records.items())
            self._slow = not any(record.active or sandbox.busy_since for sandbox, record in records)
            began = time.thread_time()
            for sandbox, record in records:
                if _is_due(sandbox, record, time.monotonic()):
                    self._look_at(sandbox, record)
            rest = _REST_FACTOR * (time.thread_time() - began)

    def _look_at(self, sandbox: Monitored, record: _Record) -> None:
        """Measure a sandbox, and end an excess. Whatever fails, the others are looked at."""
        began = time.thread_time()
        try:
            usage = sandbox.measure_usage()
            if usage is None:
                self.remove(sandbox)
                return
            record.active = _may_grow(usage)
            excess = find_excess(usage, sandbox.policy)
            if excess is not None:
                sandbox.end_excess(excess, usage)
        except (OSError, SessionLost):
            logger.debug("a sandbox ended while it was measured", exc_info=True)
        except Exception:
            if not record.failed:
                logger.exception("a sandbox could not be measured; this is tried again, and told once")
            record.failed = True
        finally:
            record.moment = time.monotonic()
            record.cost = time.thread_time() - began


def _may_grow(usage: Usage) -> bool:
    """Whether a sandbox may use more although no request runs: it has more than one thread, or messages wait
    in its sockets, which are all that is measured where a control group counts threads and memory."""
    return usage.threads > 1 or (usage.threads == 0 and usage.memory_bytes > 0)


def _is_due(sandbox: Monitored, record: _Record, now: float) -> bool:
    since = sandbox.busy_since
    quick = record.active or (since is not None and now - since >= _QUICK_S)
    return now - record.moment >= max(_QUICK_S if quick else _SLOW_S, _COST_FACTOR * record.cost)
