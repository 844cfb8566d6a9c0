"""What `/metrics` tells: plain numbers, counted where things happen and put into form when asked."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from envtorch.errors import EnvTorchError

__all__ = ["Meter", "Metrics"]

BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Meter:
    """Counts what happens in one server. Only its event loop touches it, so nothing is locked."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.opened = self.detached = self.resumed = self.repeated = 0
        self.clock = clock
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def answered(self, kind: str, began: float, error: EnvTorchError | None = None) -> None:
        """Count a call that `began` then, how long it took, and how it failed."""
        if error is not None:
            self.errors[error.code or "UNKNOWN"] += 1
        if kind == "step":
            self.stepped(began)
        else:
            self.calls[kind] += 1

    def stepped(self, began: float) -> None:
        """`answered`, for the call that happens most."""
        seconds = self.clock() - began
        self._seconds += seconds
        self._buckets[bisect_left(BUCKETS, seconds)] += 1

    def stepped_together(self, began: float, count: int) -> None:
        """`stepped`, for a batch: each of its steps counts as long as they took on average."""
        if count:
            seconds = self.clock() - began
            self._seconds += seconds
            self._buckets[bisect_left(BUCKETS, seconds / count)] += count

    @contextmanager
    def call(self, kind: str) -> Iterator[None]:
        """`answered`, around a call."""
        began, failed = self.clock(), None
        try:
            yield
        except EnvTorchError as error:
            failed = error
            raise
        finally:
            self.answered(kind, began, failed)

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


class Metrics(Collector):
    """A server's numbers in Prometheus' text form."""

    def __init__(self, meter: Meter, phases: Callable[[], Counter[str]], queue: Callable[[], int]) -> None:
        self._meter, self._phases, self._queue = meter, phases, queue
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Any]:
        meter = self._meter
        sessions = GaugeMetricFamily("envtorch_sessions", "Live sessions.", labels=["phase"])
        for phase, count in sorted(self._phases().items()):
            sessions.add_metric([phase], count)
        yield sessions
        yield GaugeMetricFamily("envtorch_waiting", "Callers who wait for a slot.", self._queue())
        calls = CounterMetricFamily("envtorch_calls", "Calls answered.", labels=["kind"])
        for kind, count in sorted((*meter.calls.items(), ("step", meter.steps))):
            calls.add_metric([kind], count)
        yield calls
        errors = CounterMetricFamily("envtorch_errors", "Calls that failed.", labels=["code"])
        for code, count in sorted(meter.errors.items()):
            errors.add_metric([code], count)
        yield errors
        buckets, seconds = meter.step_latency()
        yield HistogramMetricFamily("envtorch_step_seconds", "Time a step takes.", buckets, seconds)
        for name, text, value in (
            ("opened", "Sessions opened.", meter.opened),
            ("detached", "Sessions that lost their socket.", meter.detached),
            ("resumed", "Sessions that were taken up again.", meter.resumed),
            ("repeated", "Requests answered from the ledger.", meter.repeated),
        ):
            yield CounterMetricFamily(f"envtorch_sessions_{name}", text, value)
