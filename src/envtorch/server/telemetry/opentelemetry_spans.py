"""OpenTelemetry spans; imported only where they are asked for."""

from collections.abc import Callable

from opentelemetry import propagate, trace
from opentelemetry.trace import Status, StatusCode

from envtorch.protocol.ledger import CallOutcome
from envtorch.server.telemetry.tracing import CARRIER

__all__ = ["span"]

_tracer = trace.get_tracer("envtorch")


def span(operation: str, session_id: str) -> Callable[[CallOutcome], None]:
    """A span for one call, under the caller's trace where the request carries one."""
    context = propagate.extract(CARRIER.get({}))
    attributes = {"envtorch.session_id": session_id}
    current = _tracer.start_span(f"envtorch.{operation}", context, attributes=attributes)

    def end(outcome: CallOutcome) -> None:
        if outcome.error is not None:
            current.set_attribute("envtorch.error_code", outcome.error.code or "UNKNOWN")
            current.record_exception(outcome.error)
            current.set_status(Status(StatusCode.ERROR, outcome.error.message))
        current.end()

    return end
