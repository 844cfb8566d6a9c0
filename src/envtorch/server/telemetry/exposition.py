"""What `/metrics` tells: a server's numbers in Prometheus' form. Loaded when it is first asked for."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from envtorch.server.telemetry.metrics import Meter

__all__ = ["Metrics"]


class RecordingState(Protocol):
    """What `/metrics` tells of a recording."""

    @property
    def problem(self) -> str | None: ...
    @property
    def dropped(self) -> int: ...


class Metrics(Collector):
    """A server's numbers in Prometheus' text form."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        meter: Meter,
        phases: Callable[[], Counter[str]],
        capacity: Callable[[], int],
        queue: Callable[[], int],
        stuck: Callable[[], int],
        recording: RecordingState | None,
    ) -> None:
        self._meter, self._phases, self._queue, self._stuck = meter, phases, queue, stuck
        self._capacity = capacity
        self._recording = recording
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
        yield GaugeMetricFamily(
            "envtorch_sessions_capacity", "The most sessions at a time, in all workers.", self._capacity()
        )
        yield GaugeMetricFamily("envtorch_waiting", "Callers who wait for a slot.", self._queue())
        yield GaugeMetricFamily(
            "envtorch_sessions_stuck", "Sessions in a call that does not return.", self._stuck()
        )
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
        if self._recording is not None:
            yield from self._recorded(self._recording)

    @staticmethod
    def _recorded(recording: RecordingState) -> Iterator[Any]:
        yield CounterMetricFamily(
            "envtorch_recording_dropped_lines", "Calls whose line could not be written.", recording.dropped
        )
        yield GaugeMetricFamily(
            "envtorch_recording_failing",
            "1 while the recording cannot be written.",
            recording.problem is not None,
        )
