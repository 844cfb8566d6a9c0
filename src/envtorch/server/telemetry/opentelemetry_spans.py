"""OpenTelemetry spans; imported only where they are asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import propagate, trace

from envtorch.errors import EnvTorchError
from envtorch.server.telemetry.tracing import CARRIER

__all__ = ["span"]

_tracer = trace.get_tracer("envtorch")


@contextmanager
def span(kind: str, session_id: str) -> Iterator[None]:
    """A span for one call, under the caller's trace where the request carries one."""
    context = propagate.extract(CARRIER.get({}))
    attributes = {"envtorch.session_id": session_id}
    with _tracer.start_as_current_span(f"envtorch.{kind}", context, attributes=attributes) as current:
        try:
            yield
        except EnvTorchError as error:
            current.set_attribute("envtorch.error_code", error.code or "UNKNOWN")
            raise
