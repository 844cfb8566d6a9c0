"""What happens in a server, as plain numbers, counted where it happens."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

from envtorch.errors import EnvTorchError
from envtorch.protocol.calls import STEPPING

__all__ = ["Meter"]

BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Meter:
    """Counts what happens in one server. Only its event loop touches it, so nothing is locked."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.opened = self.detached = self.resumed = self.repeated = 0
        self.running = 0
        """Calls that run or wait for their turn, those that another process answers included."""
        self.when_idle: Callable[[], None] | None = None
        """Called when the last of them has ended."""
        self.clock = clock
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def busy(self, change: int) -> None:
        """Count that many more calls as running."""
        self.running += change
        if self.running == 0 and self.when_idle is not None:
            self.when_idle()

    def ended(self, operation: str, seconds: float, error: EnvTorchError | None) -> None:
        """Count a call that no longer runs. That an environment was closed is no call of anybody's."""
        self.running -= 1
        if operation != "close":
            self.answered(operation, seconds, error)
        if self.running == 0 and self.when_idle is not None:
            self.when_idle()

    def answered(self, operation: str, seconds: float, error: EnvTorchError | None = None) -> None:
        """Count a call, how long it took, and how it failed."""
        if error is not None:
            self.errors[error.code or "UNKNOWN"] += 1
        if operation in STEPPING:
            self._seconds += seconds
            self._buckets[bisect_left(BUCKETS, seconds)] += 1
        else:
            self.calls[operation] += 1

    @property
    def steps(self) -> int:
        return sum(self._buckets)

    def step_latency(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets, as Prometheus wants them, and the sum of all seconds."""
        total, cumulative = 0, []
        for bound, count in zip((*BUCKETS, "+Inf"), self._buckets, strict=True):
            total += count
            cumulative.append((str(bound), float(total)))
        return cumulative, self._seconds
