"""Spans around calls, under the caller's own trace."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from envtorch import EnvClient, create_app
from envtorch.errors import EnvironmentFailed
from tests import patient
from tests.server.environments import Count, Obedient, Order, Report
from tests.support import running

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class ObedientEnv(EnvClient[Order, Report, Count]): ...


def test_calls_are_spans_of_the_callers_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    monkeypatch.setenv("ENVTORCH_TRACING", "1")
    with running(create_app(Obedient, max_concurrent_envs=2)) as server:
        with ObedientEnv(server.url, headers={"traceparent": CALLER}) as env:
            env.reset()
            with pytest.raises(EnvironmentFailed):
                env.step(Order(do="fail"))
        patient.post(server.url + "/reset", headers={"traceparent": CALLER})
    spans = [span for span in exporter.get_finished_spans() if span.name.startswith("envtorch.")]
    assert [span.name for span in spans] == ["envtorch.reset", "envtorch.step", "envtorch.reset"]
    assert {format(span.context.trace_id, "032x") for span in spans if span.context} == {CALLER[3:35]}
    assert (spans[1].attributes or {})["envtorch.error_code"] == "EXECUTION_ERROR"


def test_nothing_is_traced_unless_asked_for() -> None:
    from envtorch.server.telemetry.tracing import no_span, spans

    assert spans(enabled=False) is no_span
